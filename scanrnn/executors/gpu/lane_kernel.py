"""The view of an elementwise step: each thread of a program runs some lanes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import Var

from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.lanes import MOVES, Lanes, lanes
from scanrnn.executors.gpu.triton import MOST_STEPS, computed
from scanrnn.executors.gpu.view import Store, loaded
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, variables

# The threads of a warp, which run together, and of a program if there are many lanes.
WARP, PROGRAM = 32, 128
# A GPU has about this many multiprocessors; a program runs on one of them. Each has as
# many threads at the same time.
_PROCESSORS, THREADS = 128, 2048
# Seconds of a step, and of each of its equations.
OF_A_STEP, OF_AN_EQUATION = 1e-7, 1e-8


@dataclasses.dataclass(frozen=True, eq=False)
class LaneView:
    """Some lanes of an elementwise step, one for each thread: a `View`.

    Lanes beyond the last one repeat the first ones: they read the same numbers, and
    store the same results in the same places.

    Attributes:
      graph: the step.
      lanes: its lanes.
      threads: the number of lanes of a program.
      steps: the most steps whose rows are loaded together. On an H100 with 4 of them
        the training of a leaky sum (8192, 8, 64) takes 1.5 times as long.
      loads_ahead: the rows of the next steps are loaded while these steps are computed.
        It leaves 0.89 of the time.
    """

    graph: Graph
    lanes: Lanes
    threads: int
    steps: int = MOST_STEPS
    loads_ahead: bool = True

    @classmethod
    def of(cls, graph: Graph) -> LaneView:
        """The view of a step.

        Raises:
          NotElementwiseError: if the step is not elementwise.
        """
        found = lanes(graph)
        many = found.count >= PROGRAM * _PROCESSORS
        return cls(graph, found, PROGRAM if many else WARP)

    @property
    def inputs(self) -> list[Piece]:
        """The inputs of the step."""
        return list(map(Piece, self.graph.inputs))

    @property
    def ys(self) -> list[Piece]:
        """The ys of the step."""
        return list(map(Piece, variables(self.graph.ys)))

    @property
    def grid(self) -> tuple[int]:
        """The number of programs."""
        return (pl.cdiv(self.lanes.count, self.threads),)

    def seconds(self, cores: int) -> float:
        """What a step takes, by times of a leaky sum, an LRU and an SRU on an H200."""
        each = OF_A_STEP + len(self.graph.eqns) * OF_AN_EQUATION
        return each * pl.cdiv(self.lanes.count, THREADS * cores)

    @property
    def warps(self) -> int:
        """The number of warps of a program."""
        return self.threads // WARP

    def form(self, v: Var) -> Form:
        """All elements on one axis."""
        return Form.of(v, (math.prod(ops.aval(v).shape),))

    def places(self, pieces: Sequence[Piece]) -> list[tuple]:
        """The places of this program's lanes in the arrays."""
        lane = pl.program_id(0) * self.threads + lax.iota("int32", self.threads)
        coordinates: list = []
        for size in reversed(self.lanes.sizes):
            coordinates.insert(0, lane % size)
            lane = lane // size
        return [(self.lanes.places(p.array, coordinates),) for p in pieces]

    def read(self, v: Var, ref, place: tuple) -> Any:
        """Load a weight, once, or a row, together with the rows of a few steps."""
        return loaded(v, ref[place])

    def step(self, values: dict[Any, Any], store: Store, exchange: None = None) -> list:
        """The next carry; each value has an element for each lane."""

        def read(atom):
            if not ops.is_literal(atom):
                return values[atom]
            return jnp.full((self.threads,), atom.val, ops.aval(atom).dtype)

        graph = self.graph
        for eqn in graph.eqns:
            ins = list(map(read, eqn.invars))
            moves = eqn.primitive.name in MOVES
            values[eqn.outvars[0]] = ins[0] if moves else computed(eqn, ins)
        for k, y in enumerate(graph.ys):
            store(k, read(y))
        return [
            read(out).astype(ops.aval(v).dtype)
            for v, out in zip(graph.carry, graph.carry_out, strict=True)
        ]
