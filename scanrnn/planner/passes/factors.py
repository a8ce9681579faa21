"""Multiply small factors first: numbers, and columns with one number for each row.

The gradient of a norm multiplies whole arrays by columns and by numbers, one after the
other, and sums the result over features. With this pass, small factors are multiplied
by each other before they scale an array, and they scale the result of a sum:

    ((x * c) * 2) * d -> x * (c * 2 * d)      sum((x * c) * y) -> sum(x * y) * c

An executor that computes equation after equation passes over fewer whole arrays. Half
precision stays as it is: its products would be rounded at other places.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

from jax import lax
from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph, eval_eqn
from scanrnn.planner.ir.retrace import retrace
from scanrnn.planner.passes.wide_sums import wide


class Factors(NamedTuple):
    """The factors of a product.

    Attributes:
      small: numbers, and values that are equal along the last axis.
      whole: all others.
      negative: whether the product of the factors has the other sign.
      passes: the equations over whole arrays that compute the product.
    """

    small: list
    whole: list
    negative: bool
    passes: int


def small_factors_first(graph: Graph) -> tuple[Graph, list]:
    """Multiply numbers and columns by each other first, and after sums of rows."""
    found = {e: f for e in graph.eqns if (f := _factors(graph, e)) is not None}

    def rule(eqn, env):
        factors, sums = found[eqn], eqn.primitive.name == "reduce_sum"
        made = functools.reduce(operator.mul, map(env.read, factors.whole))
        if sums:
            (made,) = eval_eqn(eqn, [made])
            made = lax.expand_dims(made, (made.ndim,))
        if factors.small:
            small = (_read_small(graph, a, env) for a in factors.small)
            made = made * functools.reduce(operator.mul, small)
        made = -made if factors.negative else made
        return [lax.squeeze(made, (made.ndim - 1,)) if sums else made]

    return retrace(graph, rule, found)


def _factors(graph: Graph, eqn: JaxprEqn) -> Factors | None:
    """The factors of what an equation multiplies or sums; None if nothing is gained."""
    if eqn.primitive.name not in ("mul", "reduce_sum"):
        return None
    sums = eqn.primitive.name == "reduce_sum"
    root = eqn.invars[0] if sums else eqn.outvars[0]
    aval = ops.aval(root)
    if not ops.is_inexact(root) or wide(aval.dtype) != aval.dtype or ops.is_split(aval):
        return None
    last = aval.ndim - 1
    if last < 1 or (sums and tuple(eqn.params["axes"]) != (last,)):
        return None
    if _is_factor(graph, root) != sums:
        return None
    found = _taken_apart(graph, root)
    if not any(ops.aval(a).shape == aval.shape for a in found.whole):
        return None
    passes = len(found.whole) - 1 + (not sums)
    return found if found.passes > passes else None


def _is_factor(graph: Graph, atom) -> bool:
    """Whether a product is read once: to multiply it, or to sum its rows."""
    users = graph.consumers.get(atom, ())
    made = graph.producer(atom)
    if made is None or made.primitive.name not in ("mul", "neg") or len(users) != 1:
        return False
    return users[0] is not None and users[0].primitive.name in ("mul", "reduce_sum")


def _taken_apart(graph: Graph, root) -> Factors:
    """The factors of a product, and of its factors that nothing else reads."""
    small, whole, negative, passes = [], [], False, 0
    todo: list[Any] = [root]
    while todo:
        atom = todo.pop()
        made = graph.producer(atom)
        if made is not None and (atom is root or _is_factor(graph, atom)):
            negative ^= made.primitive.name == "neg"
            passes += ops.aval(atom).shape == ops.aval(root).shape
            todo += reversed(made.invars)
        else:
            (small if _is_small(graph, atom) else whole).append(atom)
    return Factors(small, whole, negative, passes)


def _is_small(graph: Graph, atom) -> bool:
    """Whether a value is a number, or equal along its last axis."""
    shape, made = ops.aval(atom).shape, graph.producer(atom)
    if not shape or shape[-1] == 1:
        return True
    if made is None or made.primitive.name != "broadcast_in_dim":
        return False
    sizes = ops.aval(made.invars[0]).shape
    axes = zip(made.params["broadcast_dimensions"], sizes, strict=True)
    return all(size == 1 for axis, size in axes if axis == len(shape) - 1)


def _read_small(graph: Graph, atom, env: Env):
    """A small factor, with size 1 along its last axis."""
    made, shape = graph.producer(atom), ops.aval(atom).shape
    if made is None or not shape or shape[-1] == 1:
        return env.read(atom)
    column = (*shape[:-1], 1)
    axes = made.params["broadcast_dimensions"]
    return lax.broadcast_in_dim(env.read(made.invars[0]), column, axes)
