"""Run all programs of a kernel that exchanges, step by step, without a GPU: for tests.

Pallas's interpreter runs one program after the other, so none could wait for another.
Here all programs run each step at the same time, as examples of `jax.vmap`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors.gpu.slice_products import Sizes, reduced
from scanrnn.executors.gpu.view import ExchangingView, loaded, read_weights

SLICES = "slices"


class Mapped:
    """Exchanges between the elements of a mapped axis: an `Exchange`."""

    stopped: Any = False  # nothing waits

    def gathered(self, parts: Sequence, sizes: Sizes) -> Callable:
        """As `Exchange` says."""
        whole = [lax.all_gather(a, SLICES, axis=1, tiled=True) for a in parts]
        if sizes.split > 1:
            rows = jnp.stack(whole)[lax.axis_index(SLICES) % sizes.split]
        else:
            rows = jnp.concatenate(whole)
            rows = jnp.pad(rows, ((0, sizes.columns - len(rows)), (0, 0)))
        return lambda start, size: rows[:, start : start + size]

    def tiles(self, array, sizes: Sizes) -> Callable:
        """As `Exchange` says."""
        own, whole = lax.axis_index(SLICES), lax.all_gather(array, SLICES)

        def tile(operand, gate):
            place = map(jnp.int32, sizes.place(own, operand, gate))
            shape = 1, sizes.features, sizes.examples
            return lax.dynamic_slice(whole, [*place], shape)[0]

        return tile

    def reduced(self, part, name: str) -> Any:
        """As `Exchange` says."""
        return reduced(name, lax.all_gather(part, SLICES, axis=1, tiled=True))


def run(
    view: ExchangingView, groups: Sequence, length: int, reverse: bool, args: Sequence
) -> list:
    """The outputs of a kernel of a view, as `pl.pallas_call` would give them."""
    graph, (read, last, made) = view.graph, groups
    arrays = dict(zip(read, args, strict=True))
    pieces = dict(zip(graph.inputs, view.inputs, strict=True))
    weights = read_weights(graph)
    slices, blocks = view.grid

    def program(own, block):
        place = view.own(own, block)

        def given(v, *t):
            return view.read(v, arrays[pieces[v].array], (*t, *pieces[v].at(place)))

        constants = {v: given(v) for v in weights}

        def step(carry, t):
            stored: dict[int, Any] = {}
            rows = {v: given(v, t) for v in graph.xs}
            values = constants | rows | dict(zip(graph.carry, carry, strict=True))
            out = view.step(values, stored.__setitem__, Mapped())
            return tuple(out), [stored[k] for k in range(len(view.ys))]

        carry = tuple(loaded(v, given(v)) for v in graph.carry)
        return lax.scan(step, carry, jnp.arange(length), reverse=reverse)

    each = jax.vmap(program, (0, None), axis_name=SLICES)
    each = jax.vmap(each, (None, 0), 1)
    carry, ys = each(jnp.arange(slices), jnp.arange(blocks))
    structs = [view.form(v).struct() for v in last]
    own = [pieces[v] for v in graph.carry]
    final = _assembled(view, structs, last, own, carry)
    structs = [view.form(v).struct(length) for v in made]
    return final + _assembled(view, structs, made, view.ys, ys, (slice(None),))


def _assembled(view, structs, names, pieces, found, lead=()) -> list:
    """Arrays of all programs, from the pieces of each of them."""
    arrays = {
        v: jnp.zeros(s.shape, s.dtype) for v, s in zip(names, structs, strict=True)
    }
    for own, block in itertools.product(*map(range, view.grid)):
        place = view.own(own, block)
        for piece, value in zip(pieces, found, strict=True):
            array = arrays[piece.array]
            at = array.at[(*lead, *piece.at(place))]
            arrays[piece.array] = at.set(value[own, block].astype(array.dtype))
    return list(arrays.values())
