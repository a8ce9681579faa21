"""What views have in common whose programs run some examples of the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.forms import Piece
from scanrnn.executors.gpu.one_head import OneHead
from scanrnn.executors.gpu.view import Store
from scanrnn.executors.kernels.tiles import MixesBatchError, batch_of, in_part
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph


@dataclasses.dataclass(frozen=True, eq=False)
class ExamplesView:
    """Some examples of the batch, and a part of their features.

    Examples beyond the last one repeat the first ones: they store the same results in
    the same places.

    Attributes:
      graph: the step of one program.
      part: the step of the part of the features (one head, or a slice), for the whole
        batch.
      batch: the size of the batch.
      examples: the number of examples of a program.
    """

    graph: Graph
    part: OneHead
    batch: int
    examples: int

    @property
    def inputs(self) -> Sequence[Piece]:
        """The inputs of the step, for one part."""
        return self.part.inputs

    @property
    def ys(self) -> Sequence[Piece]:
        """The ys of the step, for one part."""
        return self.part.ys

    def own(self, part: Any, block: Any) -> dict[str, Any]:
        """What the pieces of a program have of their own, given its place."""
        lane = block * self.examples + lax.iota("int32", self.examples)
        return {"examples": lane % self.batch, "head": part}

    def finished(self, read: Callable, store: Store) -> list:
        """Store the ys of a step; the next carry."""
        graph = self.graph
        for k, y in enumerate(graph.ys):
            store(k, jnp.asarray(read(y)))
        return [
            jnp.broadcast_to(read(o), ops.aval(v).shape).astype(ops.aval(v).dtype)
            for v, o in zip(graph.carry, graph.carry_out, strict=True)
        ]


def size_of_batch(graph: Graph) -> int:
    """The size of the batch of a step.

    Raises:
      NotAKernelError: if it has none.
    """
    size = batch_of(graph)
    if size is None:
        raise NotAKernelError("not all its arrays have a batch as their first axis")
    return size


def of_examples(graph: Graph, batch: int, examples: int) -> Graph:
    """The step for some examples of a batch.

    Raises:
      NotAKernelError: if it does not keep the examples apart.
    """
    try:
        return in_part(graph, (), batch, examples)
    except MixesBatchError as name:
        raise NotAKernelError(f"{name} does not keep the batch apart") from name
