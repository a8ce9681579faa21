"""The view of a step with products: each program runs some examples of the batch.

All features of these examples lie in one program, so nothing is exchanged between
programs. Parts of matrices stay in the fast memory of the program for all steps, as
many as fit; the others are read again at every step, from a cache. A product of which a
step reads parts, an LSTM's gates say, is computed part by part: Triton has no slices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors._block_checks import (
    EXAMPLES,
    NUMBERS,
    NotBlockedError,
    check,
)
from scanrnn.executors._forms import Form, Piece
from scanrnn.executors._kernel_forms import multiplied
from scanrnn.executors._kernel_tiles import MixesBatchError, batch_of, in_part
from scanrnn.executors._lanes import ELEMENTWISE
from scanrnn.executors._one_head import OneHead
from scanrnn.executors._parts import Part, casts, kept_parts
from scanrnn.executors._triton import Store, computed, loaded
from scanrnn.planner import ops
from scanrnn.planner.cuts import cut
from scanrnn.planner.graph import Graph, eval_eqn
from scanrnn.planner.rows import spans
from scanrnn.planner.wide_sums import wide


class _Matrix(NamedTuple):
    """A matrix in memory: an array, the index of the matrix in it, and loaded parts."""

    ref: Any
    head: tuple
    loaded: Mapping[Part, Any] = {}

    def part(self, part: Part):
        """Some rows and columns."""
        if part in self.loaded:
            return self.loaded[part]
        at = (slice(start, start + size) for start, size in part)
        return self.ref[(*self.head, *at)]


class _Product(NamedTuple):
    """Columns of `left @ matrix`, computed when they are read."""

    left: list
    matrix: _Matrix
    start: int
    size: int
    dtype: Any
    precision: Any

    def part(self, start: int, size: int) -> _Product:
        return self._replace(start=self.start + start, size=size)

    def value(self):
        columns, rows = (self.start, self.size), spans(a.shape[1] for a in self.left)
        made = (
            self._multiplied(a, self.matrix.part(Part(at, columns)))
            for a, at in zip(self.left, rows, strict=True)
        )
        return functools.reduce(jnp.add, made).astype(self.dtype)

    def _multiplied(self, a, b):
        """A product as Triton has it, of one dtype: no factor is rounded for it."""
        dtype = wide(self.dtype)
        if a.dtype != b.dtype:
            a, b = a.astype(dtype), b.astype(dtype)
        return lax.dot(a, b, precision=self.precision, preferred_element_type=dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockView:
    """Some examples of the batch: a `View`.

    Examples beyond the last one repeat the first ones: they store the same results in
    the same places.

    Attributes:
      graph: the step of one program.
      part: the step of one head, for the whole batch.
      batch: the size of the batch.
      examples: the number of examples of a program.
      kept: the weights that are read part by part, and the parts that stay in the fast
        memory for all steps. Of the training of an LSTM and a GRU (1024, 2, 128) in
        bfloat16 that leaves 0.78 of the time on an H100.
      warps: the number of warps of a program. On an H100 an LSTM of that size takes
        1.11 times as long with 4 of them, and 1.16 times as long with 16.
      steps: the most steps whose rows are loaded together: rows take many registers.
      loads_ahead: the rows of the next steps are loaded while these steps are computed.
        It leaves 0.75 and 0.79 of the time.
    """

    graph: Graph
    part: OneHead
    batch: int
    examples: int
    kept: Mapping[Var, Sequence[Part]]
    warps: int = 8
    steps: int = 1
    loads_ahead: bool = True

    @classmethod
    def of(cls, graph: Graph, memory: int = 0) -> BlockView:
        """The view of a step; `memory` is the fast memory of a program, in bytes.

        Raises:
          NotBlockedError: if a program cannot run it.
        """
        part = OneHead.of(graph)
        size = batch_of(part.graph)
        if size is None:
            raise NotBlockedError("not all its arrays have a batch as their first axis")
        try:
            examples = _examples(part.graph)
            own = in_part(part.graph, (), size, examples)
        except MixesBatchError as name:
            raise NotBlockedError(f"{name} does not keep the batch apart") from name
        matrices = frozenset(multiplied(own))
        check(own, matrices)
        kept = kept_parts(own, matrices, memory)
        return cls(own, part, size, examples, kept)

    @property
    def inputs(self) -> Sequence[Piece]:
        """The inputs of the step, for one head."""
        return self.part.inputs

    @property
    def ys(self) -> Sequence[Piece]:
        """The ys of the step, for one head."""
        return self.part.ys

    @property
    def grid(self) -> tuple[int, int]:
        """A program for some examples of each head."""
        return pl.cdiv(self.batch, self.examples), self.part.heads

    def form(self, v: Var) -> Form:
        """How an array lies in memory, with the whole batch and all heads."""
        return self.part.forms[v]

    def places(self, pieces: Sequence[Piece]) -> list[tuple]:
        """The examples of this program, and its head."""
        lane = pl.program_id(0) * self.examples + lax.iota("int32", self.examples)
        own = {"examples": lane % self.batch, "head": pl.program_id(1)}
        return [piece.at(own) for piece in pieces]

    def read(self, v: Var, ref, place: tuple) -> Any:
        """Vectors and rows are in registers; matrices are read in parts."""
        if v not in self.kept:
            return loaded(v, ref[place])
        matrix = _Matrix(ref, place)
        return _Matrix(ref, place, {at: matrix.part(at) for at in self.kept[v]})

    def step(self, values: dict[Any, Any], store: Store) -> list:
        """The next carry of the examples of a program."""

        def read(atom):
            if ops.is_literal(atom):
                return jnp.asarray(atom.val, ops.aval(atom).dtype)
            if isinstance(values[atom], _Product):
                values[atom] = values[atom].value()
            found = values[atom]
            return _joined(found) if isinstance(found, list) else found

        graph = self.graph
        for eqn in graph.eqns:
            name, out = eqn.primitive.name, eqn.outvars[0]
            if name in ops.PRODUCTS:
                left = values[eqn.invars[0]]
                parts = left if isinstance(left, list) else [read(eqn.invars[0])]
                params, aval = eqn.params, ops.aval(out)
                values[out] = _Product(
                    parts,
                    values[eqn.invars[1]],
                    0,
                    aval.shape[1],
                    aval.dtype,
                    params["precision"],
                )
            elif name == "split":
                whole = values[eqn.invars[0]]
                if isinstance(whole, _Product):
                    outs = [whole.part(*place) for place in spans(eqn.params["sizes"])]
                else:
                    outs = eval_eqn(eqn, [read(eqn.invars[0])])
                values |= zip(eqn.outvars, outs, strict=True)
            elif name == "concatenate":
                values[out] = list(map(read, eqn.invars))
            elif casts(eqn) and isinstance(values[eqn.invars[0]], list):
                values[out] = [
                    a.astype(ops.aval(out).dtype) for a in values[eqn.invars[0]]
                ]
            else:
                values[out] = computed(eqn, _alike(eqn, map(read, eqn.invars)))
        for k, y in enumerate(graph.ys):
            store(k, jnp.asarray(read(y)))
        return [
            jnp.broadcast_to(read(o), ops.aval(v).shape).astype(ops.aval(v).dtype)
            for v, o in zip(graph.carry, graph.carry_out, strict=True)
        ]


def _examples(graph: Graph) -> int:
    """The examples of a program: fewer if each has a large state, and no product."""
    made = [v for e in graph.eqns for v in e.outvars]
    if any(e.primitive.name in ops.PRODUCTS for e in graph.eqns):
        return EXAMPLES
    sizes = (ops.product(ops.aval(v).shape[1:]) for v in (*graph.carry, *made))
    return cut(EXAMPLES, max(1, NUMBERS // max(sizes)))


def _joined(parts: list):
    """Arrays of one size side by side, two at a time: what Triton can do."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    pair = _joined(parts[:half]), _joined(parts[half:])
    rows, columns = pair[0].shape
    return jnp.stack(pair, -1).swapaxes(-1, -2).reshape(rows, 2 * columns)


def _alike(eqn: JaxprEqn, ins: Iterable) -> list:
    """Operands of one shape: in a batch of one, some do not have the batch."""
    shape = ops.aval(eqn.outvars[0]).shape
    if eqn.primitive.name not in ELEMENTWISE:
        return list(ins)
    return [jnp.broadcast_to(a, shape) if jnp.ndim(a) else a for a in ins]
