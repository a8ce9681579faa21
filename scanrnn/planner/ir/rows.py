"""Rows: where the values of each step lie in the arrays of all steps.

The gates from one split may lie in one array. The carry before a step is the carry
after the previous step: if one of them is stacked, the other is read from it. And a
loop may reuse buffers: it stacks its outputs over arrays that it no longer needs.

XLA for CPU gives the stacked outputs of a loop memory of their own, and first fills it
with zeros. If an iteration of the loop (a trip) reads an array and then overwrites a
row, XLA copies the whole array in every trip. It makes no copy if every read comes
after the write. So with buffer reuse rows are written one trip late: a trip first
writes the rows of the previous trip, and then reads its own. If `over` is empty, rows
are read and written as in `lax.scan`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add, eq, lt, mul, sub
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Values


class Place(NamedTuple):
    """A part of each row of the array `whole`: `size` elements of an axis from `start`.

    The axis is counted in a row, without the axis of time.
    """

    whole: Var
    axis: int
    start: int
    size: int


class Shift(NamedTuple):
    """Values that equal those of the variable `of` one step before, or one step after.

    At step t they are those of step t - 1 if `later`, else of step t + 1. So there is
    no such value at step 0 if `later`, else at the last step. The value there, the
    edge, is stored under the shifted variable itself.
    """

    of: Var
    later: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """How a loop finds its rows in the arrays of all steps.

    Attributes:
      length: the number of steps.
      reverse: whether the loop runs from the last step to the first.
      places: variables that lie inside another array.
      shifts: variables that are a shift of another one.
      over: for some stacked outputs, by index, the array whose rows they overwrite
        while the loop still reads it.
      trip_steps: the number of steps in a trip. If it is no divisor of `length`, the
        last steps of the sequence are a trip of their own beside the loop.
      fenced: with `over`, whether the last rows are written in a loop of their own.
      memory: for some stacked outputs, by index, an array that is no longer read, whose
        memory they are given.
      filled: whether `lax.scan` makes the stacked arrays, filled with zeros. If not,
        the loop gets memory that is not filled, and counts its trips itself.
    """

    length: Any
    reverse: bool = False
    places: Mapping[Var, Place] = dataclasses.field(default_factory=dict)
    shifts: Mapping[Var, Shift] = dataclasses.field(default_factory=dict)
    over: Mapping[int, Var] = dataclasses.field(default_factory=dict)
    memory: Mapping[int, Var] = dataclasses.field(default_factory=dict)
    trip_steps: int = 1
    fenced: bool = True
    filled: bool = True

    @property
    def first(self) -> int:
        """The index of the step that comes first."""
        return self.length - 1 if self.reverse else 0

    @property
    def last(self) -> int:
        """The index of the step that comes last."""
        return 0 if self.reverse else self.length - 1

    def sources(self, names: Iterable[Var]) -> dict[Var, None]:
        """The arrays and edges from which the values of some variables are read."""
        found: dict[Var, None] = {}
        for v in names:
            while v in self.shifts:
                found[v] = None
                v = self.shifts[v].of
            found[self.places[v].whole if v in self.places else v] = None
        return found

    def of(self, names: Iterable[Var], arrays: Values) -> dict[Var, Any]:
        """The arrays and edges from which some variables are read."""
        sources = self.sources(names)
        return {v: a for v, a in arrays.items() if v in sources}

    def row(self, arrays: Values, t, v: Var):
        """The value of a variable at step `t`."""
        if v in self.shifts:
            (of, later), last = self.shifts[v], self.length - 1
            at, edge = (index(sub, t, 1), 0) if later else (index(add, t, 1), last)
            row = self.row(arrays, clipped(at, last), of)
            return lax.select(index(eq, t, edge), arrays[v], row)
        place = self.places.get(v)
        return row_at(arrays[place.whole if place else v], t, place)

    def all(self, arrays: Values, v: Var):
        """The values of a variable at all steps, as an array."""
        if v in self.shifts:
            of, later = self.shifts[v]
            values, edge = self.all(arrays, of), lax.expand_dims(arrays[v], [0])
            first, last = (0, -1) if later else (1, None)
            rest = lax.slice_in_dim(values, first, last)
            return lax.concatenate([edge, rest] if later else [rest, edge], 0)
        if v in self.places:
            whole, axis, start, size = self.places[v]
            return lax.slice_in_dim(arrays[whole], start, start + size, axis=axis + 1)
        return arrays[v]

    def whole(self, names: Iterable[Var], arrays: Values) -> dict[Var, Any]:
        """The values of some variables at all steps, each as an array."""
        return {v: self.all(arrays, v) for v in names}

    @property
    def rest(self) -> int:
        """The number of steps beside the loop."""
        return self.length % self.trip_steps if self.trip_steps > 1 else 0

    @property
    def first_beside(self) -> np.int32:
        """The index of the first step beside the loop."""
        return np.int32(self.length - self.rest)

    @property
    def _last_trip(self):
        """The first step of the last trip of the loop."""
        return self.length - self.rest - self.trip_steps

    @property
    def trips(self):
        """The number of trips of the loop."""
        return self.length // self.trip_steps if self.trip_steps > 1 else self.length

    def fresh(self, graph, ours: Sequence[int], arrays: Values) -> tuple:
        """The index of the first trip, and memory for some ys of a graph, not filled.

        The loop will write every row. The index is None if `filled`: then `lax.scan`
        counts.
        """

        def array(i):
            aval = ops.aval(graph.ys[i])
            shape = self.length, *aval.shape
            given = arrays[self.memory[i]] if i in self.memory else None
            # The axes of the rows of a given array may have been joined.
            fits = given is not None and given.shape == shape
            return given if fits else lax.empty(shape, aval.dtype)

        memory = list(map(array, ours))
        if self.filled:
            return None, memory
        return np.int32(self.trips - 1 if self.reverse else 0), memory

    def after(self, trip):
        """The index of the next trip; None if `lax.scan` counts."""
        return None if trip is None else index(add, trip, -1 if self.reverse else 1)

    def start(self, arrays: Sequence) -> list:
        """The rows that the first trip writes late: those that are there already."""
        first = self._last_trip if self.reverse else 0
        return [lax.slice_in_dim(a, first, first + self.trip_steps) for a in arrays]

    def write(self, arrays: Sequence, late: Sequence, trip) -> list:
        """Write the rows that the trip before `trip` made."""
        if not arrays:
            return []
        before = index(add if self.reverse else sub, trip, 1)
        before, block = clipped(before, self.trips - 1), self.trip_steps
        at = index(mul, before, block) if block > 1 else before
        return [put(a, rows, at) for a, rows in zip(arrays, late, strict=True)]

    def finish(self, arrays: Sequence, late: Sequence) -> list:
        """Write the rows of the last trip.

        If `fenced`, they are written in a loop of their own, which writes them twice.
        Else a barrier stops XLA from repeating the write wherever the array is read.
        """
        if not arrays:
            return []
        last = 0 if self.reverse else self._last_trip

        def write(arrays):
            return [put(a, rows, last) for a, rows in zip(arrays, late, strict=True)]

        if not self.fenced:
            return list(lax.optimization_barrier(write(arrays)))

        def again(state):
            count, arrays = state
            return index(add, count, 1), write(arrays)

        # `lax.fori_loop` makes a `lax.scan`, which takes longer to trace and to lower.
        first = np.int32(0), list(arrays)
        return lax.while_loop(lambda state: index(lt, state[0], 2), again, first)[1]


def index(operation: Callable, t, number):
    """`operation(t, number)` of an index, such as `operator.add`.

    An operator of arrays is a call of `jnp`, which JAX traces as a program of its own.
    """
    if not isinstance(t, jax.Array) or not isinstance(number, int):
        return operation(t, number)  # a number, or a symbolic length
    return getattr(lax, operation.__name__)(t, t.dtype.type(number))


def spans(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """The start and the size of each part of an axis."""
    sizes = tuple(sizes)
    return list(zip(itertools.accumulate(sizes, initial=0), sizes, strict=False))


def folded(lead: Sequence, array, axes: int = 1):
    """The array with the axes `lead` in place of its first `axes` axes."""
    return lax.reshape(array, (*lead, *array.shape[axes:]))


def put(array, rows, t):
    """The array with its rows from step `t` on replaced by `rows`."""
    rows = rows.astype(array.dtype)
    return lax.dynamic_update_slice_in_dim(
        array, rows, t, 0, allow_negative_indices=False
    )


def clipped(at, last):
    """The index `at`, but at least 0 and at most `last`.

    `jnp.clip` is a call of its own in the program, which takes longer to trace.
    """
    if not isinstance(last, int):
        return jnp.clip(at, 0, last)
    first, last = at.dtype.type(0), at.dtype.type(last)
    return lax.min(last, lax.max(first, at))


def row_at(array, t, place: Place | None = None):
    """The row of step `t`, or a part of it: one slice, not a slice of a slice."""
    starts, sizes = [t, *[np.int32(0)] * (array.ndim - 1)], [1, *array.shape[1:]]
    if place is not None:
        at = place.axis + 1
        starts[at], sizes[at] = np.int32(place.start), place.size
    found = lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)
    return lax.squeeze(found, [0])


def pair_up(written: Sequence, read: Iterable[Var]) -> dict[int, Var]:
    """For some written values, by index, one of `read` with the same shape and dtype.

    Each of `read` is used at most once.
    """
    free, pairs = list(read), {}
    for i, v in enumerate(written):
        fits = [u for u in free if ops.alike(u, v)]
        if fits and v not in written[:i]:
            pairs[i] = fits[0]
            free.remove(fits[0])
    return pairs
