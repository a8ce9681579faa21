"""Rules for primitives that are linear in some of their operands.

A rule says how the results depend on a leaf of the carry (`depend`), and computes the
results (`apply`). A value may have size 1 along an axis where it is constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import eval_eqn
from scanrnn.planner.parallel.axis_maps import AxisMap


class NotAffineError(Exception):
    """The reason why a step is not affine in a leaf of its carry."""


class Rule(NamedTuple):
    """How an equation is linear.

    Attributes:
      depend: `(eqn, maps) -> [map of each result]`; a map is None for an operand that
        does not depend on the leaf.
      apply: `(eqn, values) -> results`; a value is None for zero.
      added: the number of the first operand that may be an added term. Such an operand,
        if it does not depend on the carry, belongs to `b` and not to `A`. None if other
        operands are factors or indices.
    """

    depend: Callable[[JaxprEqn, Sequence[AxisMap | None]], list[AxisMap]]
    apply: Callable[[JaxprEqn, Sequence[Any]], list]
    added: int | None = None


def rule_of(eqn: JaxprEqn, dependent: Sequence[bool]) -> Rule:
    """The rule of an equation. `dependent` says which operands depend on the carry.

    Raises:
      NotAffineError: if the equation is not linear in these operands.
    """
    name = eqn.primitive.name
    read = [a for a, m in zip(eqn.invars, dependent, strict=True) if m]
    if not all(map(ops.is_number, (*read, *eqn.outvars))):
        raise NotAffineError(f"{name} of the carry")
    if name in ("mul", "dot_general") and all(dependent):
        raise NotAffineError(f"{name} of two values that both depend on the carry")
    if name in ("div", "dynamic_slice") and any(dependent[1:]):
        raise NotAffineError(f"{name} by what depends on the carry")
    if name == "div" and not ops.is_inexact(eqn.outvars[0]):
        raise NotAffineError("a division of whole numbers")
    if name == "select_n" and dependent[0]:
        raise NotAffineError("select_n by what depends on the carry")
    if name == "convert_element_type" and not keeps_kind(eqn):
        raise NotAffineError("convert_element_type of the carry to another kind")
    if name not in RULES:
        what = "a planned scan" if name == ops.RULED else name
        raise NotAffineError(f"{what} of the carry")
    return RULES[name]


def keeps_kind(eqn) -> bool:
    """Whether a cast keeps the dtype, or stays among floats or complex numbers.

    A cast to fewer than 16 bits quantizes: it is no rounding that may be left out.
    """
    old, new = (ops.aval(v).dtype for v in (eqn.invars[0], eqn.outvars[0]))
    if new.itemsize < min(2, old.itemsize):
        return False
    kinds = [k for k in (jnp.floating, jnp.complexfloating) if jnp.issubdtype(old, k)]
    return old == new or any(jnp.issubdtype(new, k) for k in kinds)


def full(value, atom):
    """The value with its axes of size 1 broadcast to the shape of the atom."""
    return jnp.broadcast_to(value, ops.aval(atom).shape)


def _sum(eqn, maps) -> list:
    shape = ops.aval(eqn.outvars[0]).shape
    first, *others = (_grown(m, shape) for m in maps if m is not None)
    total = functools.reduce(AxisMap.merged, others, first)
    subtracted = eqn.primitive.name == "sub" and maps[0] is None
    return [total.scaled() if subtracted else total]


def _grown(value: AxisMap, shape: Sequence[int]) -> AxisMap:
    """A value in a larger shape: an operand may be a scalar, or have axes of size 1."""
    return value.placed(shape, range(len(value.dims)))


def _select(eqn, maps) -> list:
    return _scale(eqn, maps[1:])


def _scale(eqn, maps) -> list:
    (total,) = _sum(eqn, maps)
    return [total.scaled()]


def _same(eqn, maps) -> list:
    return [maps[0]]


def _broadcast(eqn, maps) -> list:
    shape, at = (eqn.params[k] for k in ("shape", "broadcast_dimensions"))
    return [maps[0].placed(shape, at)]


def _reshape(eqn, maps) -> list:
    return [maps[0].reshaped(ops.aval(eqn.outvars[0]).shape)]


def _transpose(eqn, maps) -> list:
    return [maps[0].transposed(eqn.params["permutation"])]


def _reduce(eqn, maps) -> list:
    return [maps[0].without(eqn.params["axes"])]


def _squeeze(eqn, maps) -> list:
    return [maps[0].without(eqn.params["dimensions"], mix=False)]


def _along(axes: Callable) -> Callable:
    """Make a `depend` for results that mix the operands along some axes."""

    def depend(eqn, maps):
        found = []
        for v in eqn.outvars:
            shape, at = ops.aval(v).shape, axes(eqn)
            # A scalar is the value around a padded array.
            parts = [
                m and (m.blurred(shape, at) if m.dims else _grown(m, shape))
                for m in maps
            ]
            (total,) = _sum(eqn, parts)
            found.append(total)
        return found

    return depend


def _changed(eqn) -> list[int]:
    """The axes that a slice or a pad changes."""
    if eqn.primitive.name == "pad":
        around = enumerate(eqn.params["padding_config"])
        return [i for i, sizes in around if tuple(sizes) != (0, 0, 0)]
    shapes = (ops.aval(v).shape for v in (eqn.invars[0], eqn.outvars[0]))
    sizes = enumerate(zip(*shapes, strict=True))
    return [i for i, (a, b) in sizes if a != b]


def _dot(eqn, maps) -> list:
    contract, batch = eqn.params["dimension_numbers"]
    side = 0 if maps[0] is not None else 1
    value, taken = maps[side], (*batch[side], *contract[side])
    free = [i for i in range(len(value.dims)) if i not in taken]
    lead = value.transposed([*batch[side], *free, *contract[side]])
    count = len(batch[side]) + len(free)
    lead = lead.without(range(count, len(lead.dims))).scaled()
    shape, n = ops.aval(eqn.outvars[0]).shape, len(batch[side])
    after = range(n, count) if side == 0 else range(len(shape) - len(free), len(shape))
    return [lead.placed(shape, (*range(n), *after))]


def _wide(function: Callable) -> Callable:
    """Make an `apply` that keeps axes of size 1; zero gives zero."""

    def apply(eqn, values):
        return [None if values[0] is None else function(eqn, *values)]

    return apply


def _add(eqn, values) -> list:
    a, b = values
    if b is not None and eqn.primitive.name == "sub":
        b = jnp.negative(b)
    if a is None or b is None:
        return [b if a is None else a]
    return [jnp.add(a, b)]


def _times(eqn, values) -> list:
    return [None if any(v is None for v in values) else jnp.multiply(*values)]


def _choose(eqn, values) -> list:
    which, *cases = values
    if all(case is None for case in cases):
        return [None]
    zero = jnp.zeros((), ops.aval(eqn.outvars[0]).dtype)
    cases = [zero if case is None else case for case in cases]
    if len(cases) == 2 and which.dtype == bool:
        return [jnp.where(which, cases[1], cases[0])]
    cases = [full(case, eqn.outvars[0]) for case in cases]
    return [lax.select_n(full(which, eqn.invars[0]), *cases)]


def spread(eqn, value):
    """Apply a broadcast to a value, but leave the new axes at size 1."""
    shape = [1] * len(eqn.params["shape"])
    for size, i in zip(value.shape, eqn.params["broadcast_dimensions"], strict=True):
        shape[i] = size
    return lax.reshape(value, shape)


def _reshaped(eqn, value):
    old, new = (ops.aval(v).shape for v in (eqn.invars[0], eqn.outvars[0]))
    sizes = iter([n for n, wide in zip(value.shape, old, strict=True) if wide != 1])
    if [s for s in old if s != 1] == [s for s in new if s != 1]:
        return lax.reshape(value, [next(sizes) if s != 1 else 1 for s in new])
    return lax.reshape(full(value, eqn.invars[0]), new)


def _as_it_is(eqn, values) -> list:
    """Evaluate the equation by JAX, on values broadcast to their full shapes."""
    if all(v is None for v in values[: len(_data(eqn))]):
        return [None] * len(eqn.outvars)
    zeros = [ops.zeros(ops.aval(a)) if v is None else v
             for v, a in zip(values, eqn.invars, strict=True)]  # fmt: skip
    return eval_eqn(eqn, list(map(full, zeros, eqn.invars)))


def _data(eqn) -> Sequence:
    """The operands that are data, not indices."""
    return eqn.invars[:1] if eqn.primitive.name == "dynamic_slice" else eqn.invars


def _product(eqn, values) -> list:
    if any(v is None for v in values):
        return [None]
    return eval_eqn(eqn, list(map(full, values, eqn.invars)))


def _cast(eqn, value):
    return lax.convert_element_type(value, ops.aval(eqn.outvars[0]).dtype)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub", "add_any"), Rule(_sum, _add, 0)),
    "mul": Rule(_scale, _times),
    "div": Rule(_scale, _wide(lambda _, a, b: jnp.divide(a, b))),
    "neg": Rule(_scale, _wide(lambda _, a: jnp.negative(a))),
    "select_n": Rule(_select, _choose, 1),
    "convert_element_type": Rule(_same, _wide(_cast)),
    "copy": Rule(_same, _wide(lambda _, a: a)),
    "broadcast_in_dim": Rule(_broadcast, _wide(lambda e, a, *_: spread(e, a))),
    "reshape": Rule(_reshape, _wide(lambda e, a, *_: _reshaped(e, a))),
    "squeeze": Rule(
        _squeeze, _wide(lambda e, a: lax.squeeze(a, e.params["dimensions"]))
    ),
    "transpose": Rule(
        _transpose, _wide(lambda e, a: lax.transpose(a, e.params["permutation"]))
    ),
    "reduce_sum": Rule(_reduce, _as_it_is),
    "dot_general": Rule(_dot, _product),
    "rev": Rule(_along(lambda e: e.params["dimensions"]), _as_it_is),
    "cumsum": Rule(_along(lambda e: [e.params["axis"]]), _as_it_is),
    "split": Rule(_along(lambda e: [e.params["axis"]]), _as_it_is),
    "concatenate": Rule(_along(lambda e: [e.params["dimension"]]), _as_it_is, 0),
    "slice": Rule(_along(_changed), _as_it_is),
    "dynamic_slice": Rule(_along(_changed), _as_it_is),
    "pad": Rule(_along(_changed), _as_it_is, 0),
}
