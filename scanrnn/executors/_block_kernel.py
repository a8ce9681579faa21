"""The view of a step with products: each program runs some examples of the batch.

All features of these examples lie in one program, so nothing is exchanged between
programs. Matrices are read again at every step, from a cache close to the program. A
product of which a step reads parts, an LSTM's gates say, is computed part by part, as
Triton has no slices.
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

from scanrnn.executors._block_checks import EXAMPLES, NotBlockedError, casts, check
from scanrnn.executors._kernel_forms import multiplied
from scanrnn.executors._kernel_tiles import MixesBatchError, batch_of, in_part
from scanrnn.executors._lanes import ELEMENTWISE
from scanrnn.executors._triton import computed, loaded
from scanrnn.planner import ops
from scanrnn.planner.graph import Graph, eval_eqn, variables
from scanrnn.planner.rows import spans
from scanrnn.planner.wide_sums import wide


class _Product(NamedTuple):
    """Columns of `left @ matrix`, computed when they are read."""

    left: list
    matrix: Any
    start: int
    size: int
    dtype: Any
    precision: Any

    def part(self, start: int, size: int) -> _Product:
        return self._replace(start=self.start + start, size=size)

    def value(self):
        columns = slice(self.start, self.start + self.size)
        made = (
            lax.dot(
                a,
                self.matrix[at : at + size, columns],
                precision=self.precision,
                preferred_element_type=wide(self.dtype),
            )
            for a, (at, size) in zip(
                self.left, spans(a.shape[1] for a in self.left), strict=True
            )
        )
        return functools.reduce(jnp.add, made).astype(self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockView:
    """Some examples of the batch: a `View`.

    Examples beyond the last one repeat the first ones: they store the same results in
    the same places.

    Attributes:
      graph: the step of one program.
      whole: the step of the whole batch.
      batch: the size of the batch.
      matrices: the weights that are read part by part.
      warps: the number of warps of a program.
      steps: the most steps whose rows are loaded together: rows take many registers.
    """

    graph: Graph
    whole: Graph
    batch: int
    matrices: frozenset[Var]
    warps: int = 8
    steps: int = 1

    @classmethod
    def of(cls, graph: Graph) -> BlockView:
        """The view of a step.

        Raises:
          NotBlockedError: if a program cannot run it.
        """
        size = batch_of(graph)
        if size is None:
            raise NotBlockedError("not all its arrays have a batch as their first axis")
        try:
            part = in_part(graph, (), size, EXAMPLES)
        except MixesBatchError as name:
            raise NotBlockedError(f"{name} does not keep the batch apart") from name
        matrices = frozenset(multiplied(part))
        check(part, matrices)
        return cls(part, graph, size, matrices)

    @property
    def programs(self) -> int:
        """The number of programs."""
        return pl.cdiv(self.batch, EXAMPLES)

    def stored(self, v: Var) -> tuple[int, ...]:
        """The shape with the whole batch; a number is an array of one."""
        return self._shapes[v] or (1,)

    @functools.cached_property
    def _shapes(self) -> Mapping[Var, tuple[int, ...]]:
        pairs = zip(self.graph.inputs, self.whole.inputs, strict=True)
        found = {v: ops.aval(u).shape for v, u in pairs}
        for v in variables(self.graph.ys):
            found.setdefault(v, (self.batch, *ops.aval(v).shape[1:]))
        return found

    def places(self, names: Sequence[Var]) -> dict[Var, tuple]:
        """The examples of this program in the arrays of some variables."""
        lane = pl.program_id(0) * EXAMPLES + lax.iota("int32", EXAMPLES)
        own = (lane % self.batch,)
        weights = {*self.graph.weights}
        whole = {v: () if ops.aval(v).shape else (0,) for v in weights}
        return {v: whole.get(v, own) for v in names}

    def weight(self, v: Var, ref, place: tuple) -> Any:
        """Vectors stay in registers; matrices are read in parts."""
        return ref if v in self.matrices else loaded(v, ref[place])

    def step(self, values: dict[Any, Any]) -> tuple[list, list]:
        """The next carry and the ys of the examples of a program."""

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
        carry = [
            jnp.broadcast_to(read(o), ops.aval(v).shape).astype(ops.aval(v).dtype)
            for v, o in zip(graph.carry, graph.carry_out, strict=True)
        ]
        return carry, [jnp.asarray(read(y)) for y in graph.ys]


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
