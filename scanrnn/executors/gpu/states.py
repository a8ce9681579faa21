"""The layout of a step whose state is a matrix: where the axes of its states lie.

A matrix memory has a state for each example and head. Nothing mixes these, so each
program of a kernel runs one state. Its arrays are those of the step without the axes
that count the states.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jax.extend.core import Var

from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.places import AxisPlace, followed, found_in_all
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import WEIGHTS, Graph, variables

_ALL = slice(None)


def state_of(graph: Graph) -> Var | None:
    """The largest leaf of the carry, if it holds matrices that no weight multiplies."""
    bits, largest = graph.depends, max(graph.carry, key=ops.bytes_of, default=None)
    if largest is None or ops.aval(largest).ndim < 3:
        return None
    products = (e for e in graph.eqns if e.primitive.name in ops.PRODUCTS)
    factors = (v for e in products for v in variables(e.invars))
    return None if any(bits[v] == WEIGHTS for v in factors) else largest


class Cut(NamedTuple):
    """Into how many equal parts each state is cut, and along which of its axes."""

    axis: int
    parts: int


WHOLE = Cut(-1, 1)


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """Where the axes that count the states lie in the arrays of a step.

    Attributes:
      sizes: the sizes of these axes: all axes of the state but the last two; and if a
        program runs a part of a state, the number of these parts.
      places: for each of them, its place in each array that has it.
    """

    sizes: tuple[int, ...]
    places: Sequence[Mapping[Var, AxisPlace]]

    @classmethod
    def of(cls, graph: Graph, state: Var, cut: Cut = WHOLE) -> StateLayout:
        """The layout of a step.

        Raises:
          NotAKernelError: if it mixes the states, or the parts of a state.
        """
        shape = ops.aval(state).shape
        sizes = shape[:-2]
        places = [_followed(graph, state, axis) for axis in range(len(sizes))]
        if cut.parts > 1:
            at = AxisPlace(len(shape) + cut.axis, shape[cut.axis] // cut.parts)
            places += [followed(graph, cut.parts, {state: at}, "parts of a state")]
            sizes = (*sizes, cut.parts)
        return cls(sizes, places)

    def parts(self, v: Var) -> list[list[tuple[str | slice, int]]]:
        """For each axis of an array its axes in memory: index of a state, and size.

        An axis can count states along with others, or along with features: then it is
        as many axes in memory.

        Raises:
          NotAKernelError: if the states do not lie side by side on it.
        """
        found = []
        for axis, rest in enumerate(ops.aval(v).shape):
            own = [
                (places[v].inner, k)
                for k, places in enumerate(self.places)
                if v in places and places[v].axis == axis
            ]
            parts: list[tuple[str | slice, int]] = []
            for inner, k in sorted(own, reverse=True):
                rest //= self.sizes[k]
                if inner != rest:
                    raise NotAKernelError("a reshape joins the states and other axes")
                parts.append((_name(k), self.sizes[k]))
            if not parts or rest > 1:
                parts.append((_ALL, rest))
            found.append(parts)
        return found

    def counts(self, v: Var, axis: int) -> bool:
        """Whether an axis of an array counts states."""
        return self.parts(v)[axis][0][0] is not _ALL

    def kept(self, v: Var) -> list[int]:
        """The axes that an array of one state has."""
        parts = enumerate(self.parts(v))
        return [i for i, of_axis in parts if of_axis[-1][0] is _ALL]

    def widths(self, v: Var) -> list[int]:
        """The sizes, for one state, of all axes of an array; 1 of those it lacks."""
        return [p[-1][1] if p[-1][0] is _ALL else 1 for p in self.parts(v)]

    def shape(self, v: Var) -> tuple[int, ...]:
        """The shape of an array of one state."""
        widths = self.widths(v)
        return tuple(widths[i] for i in self.kept(v))

    def form(self, v: Var) -> Form:
        """How an array of all states lies in memory: a number is an array of one."""
        sizes = [size for parts in self.parts(v) for _, size in parts]
        return Form.of(v, tuple(sizes) or (1,))

    def piece(self, v: Var) -> Piece:
        """The part of an array that is one state's."""
        index = tuple(index for parts in self.parts(v) for index, _ in parts)
        return Piece(v, index or (0,))

    def own(self, program) -> dict:
        """The index of a program's state on each axis that counts states."""
        found = {}
        for k in reversed(range(len(self.sizes))):
            found[_name(k)] = program % self.sizes[k]
            program = program // self.sizes[k]
        return found

    @property
    def count(self) -> int:
        """The number of states."""
        return math.prod(self.sizes)


def _name(k: int) -> str:
    return f"index on axis {k} of the states"


def _followed(graph: Graph, state: Var, axis: int) -> Mapping[Var, AxisPlace]:
    """The places of an axis of the state; none if it has one index."""
    lead = ops.aval(state).shape[: axis + 1]
    if lead[axis] == 1:
        return {}
    return found_in_all(graph, lead, {state: AxisPlace(axis)}, "states")
