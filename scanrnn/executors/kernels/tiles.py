"""Make a step for a part of its batch.

If the first axis of all that a step reads and makes is a batch of independent elements,
a kernel can run the whole sequence for some elements. On a TPU another core runs the
next elements, or the same core runs them later: Mosaic unrolls a batched product into
one product for each element, and code for the whole batch would be long. On a GPU each
program of a kernel has a part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.kernels.slice_ops import EXCHANGES, product_p
from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body
from scanrnn.planner.integers import divisor
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, variables
from scanrnn.planner.ir.retrace import renamed
from scanrnn.planner.ir.rows import Rows

# A step that makes at most this many bytes is not cut: registers have 4 KB.
_MOST = 2**23
# A core gets at least so many examples, which are the rows of a register. Bundles of a
# step on one core and on both cores of a TPU v5p, forward and in reverse, in bfloat16:
# LSTM (256, 64, 1024) 4,512 and 2,269, 4,091 and 2,290; (1024, 16, 768) 999 and 980,
# 1,013 and 909; (30, 32, 512) 796 and 555, 645 and 518; with layer norm (1024, 16, 768)
# 1,595 and 1,329, 1,809 and 1,437. With 4 examples for each core (256, 8, 1024): 1,493
# and 1,511, 1,557 and 1,467.
_ROWS = 8

# Primitives that leave the first axis of their operands as it is, for such parameters.
_FIRST_STAYS: dict[str, Callable[[dict], bool]] = {
    "concatenate": lambda params: params["dimension"] != 0,
    "split": lambda params: params["axis"] != 0,
    "cumsum": lambda params: params["axis"] != 0,
    "squeeze": lambda params: 0 not in params["dimensions"],
    "transpose": lambda params: params["permutation"][0] == 0,
    "rev": lambda params: 0 not in params["dimensions"],
}


def part_of(body: Body) -> tuple[Body, frozenset[Var], int]:
    """Make a body for a part of its batch.

    Returns:
      The body for one part, the weights that have the batch axis, and the number of
      parts. If the step is short and for one core, or has no batch axis: the body
      itself, no weights, 1.
    """
    graph, whole = body.graph, (body, frozenset(), 1)
    size = batch_of(graph)
    if size is None or not all(ops.aval(v).ndim for v in graph.xs):
        return whole
    part = _examples(body, size)
    if part == size:
        return whole
    weights = [v for v in graph.weights if _has_examples(graph, v, size)]
    try:
        small = in_part(graph, weights, size, part)
    except MixesBatchError:
        return whole
    rows = Rows(body.rows.length, body.rows.reverse)
    small = dataclasses.replace(body, graph=small, rows=rows)
    return small, frozenset(weights), size // part


def _examples(body: Body, size: int) -> int:
    """The elements of the batch in a part: as many parts as cores, or more."""
    graph, most = body.graph, size
    made = ops.bytes_in(v for e in graph.eqns for v in e.outvars)
    long = any(map(_has_batch, graph.eqns))
    if long and made > _MOST:
        most = max(1, size * _MOST // made)
    cores = cores_of(body.machine)
    each = size if size % cores else size // cores
    return divisor(each if long or each >= _ROWS else size, most)


def cores_of(machine: Machine | None) -> int:
    """The cores that a compiler drives as one device: those of a TPU."""
    return machine.cores if machine is not None and machine.platform == "tpu" else 1


def _has_examples(graph: Graph, v: Var, size: int) -> bool:
    """Whether the first axis of a weight is the batch, and not one of features."""
    if ops.aval(v).shape[:1] != (size,):
        return False
    users = (e for e in graph.eqns if v in variables(e.invars) and not _has_batch(e))
    return not any(e.primitive.name in ops.PRODUCTS or _moves_first(e) for e in users)


def _moves_first(eqn: JaxprEqn) -> bool:
    """Whether an equation broadcasts an array along another axis than its first."""
    name = eqn.primitive.name
    return name == "broadcast_in_dim" and eqn.params["broadcast_dimensions"][:1] != (0,)


def batch_of(graph: Graph) -> int | None:
    """The size of the first axis of carry, xs and outputs; None if it differs.

    An x that is one number is for the whole batch.
    """
    xs = (v for v in graph.xs if ops.aval(v).ndim)
    arrays = (*graph.carry, *xs, *variables(graph.outs))
    sizes = {ops.aval(v).shape[:1] for v in arrays}
    return sizes.pop()[0] if len(sizes) == 1 and () not in sizes else None


class MixesBatchError(Exception):
    """The name of an equation that does not keep the elements of a batch apart."""


def in_part(graph: Graph, weights: Iterable[Var], size: int, part: int) -> Graph:
    """The step for `part` elements of a batch of `size`.

    Args:
      graph: the step; the first axis of its carry, of its xs that are no numbers, and
        of its outputs is the batch.
      weights: the weights whose first axis is the batch, too.
      size: the size of the batch.
      part: the size of a part. It may be larger than the batch.

    Raises:
      MixesBatchError: if the step does not keep the elements apart.
    """
    batched = {*graph.carry, *(v for v in graph.xs if ops.aval(v).ndim), *weights}
    eqns = []
    for eqn in graph.eqns:
        params = _params(eqn, batched, size, part)
        if params is None:
            raise MixesBatchError(eqn.primitive.name)
        if _is_batched(eqn, batched, size):
            batched.update(eqn.outvars)
        eqns.append(eqn.replace(params=params))
    if not batched.issuperset(variables(graph.outs)):
        raise MixesBatchError("an output without the batch")
    names = {}
    for v in batched:
        aval = ops.aval(v)
        names[v] = Var(aval.update(shape=(part, *aval.shape[1:])))
    return renamed(dataclasses.replace(graph, eqns=tuple(eqns)), names)


def _has_batch(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product for each element of a batch."""
    return eqn.primitive.name == "dot_general" and bool(
        eqn.params["dimension_numbers"][1][0]
    )


def _is_batched(eqn: JaxprEqn, batched: set[Var], size: int) -> bool:
    """Whether an equation's results have the batch axis: from an operand, or new."""
    return _spreads(eqn, size) or any(v in batched for v in variables(eqn.invars))


def _spreads(eqn: JaxprEqn, size: int) -> bool:
    if eqn.primitive.name != "broadcast_in_dim":
        return False
    params = eqn.params
    return params["shape"][:1] == (size,) and 0 not in params["broadcast_dimensions"]


def _params(eqn: JaxprEqn, batched: set[Var], size: int, part: int) -> dict | None:
    """An equation's parameters for a part of the batch; None if it cannot be cut."""
    name, params = eqn.primitive.name, dict(eqn.params)
    has = [not ops.is_literal(a) and a in batched for a in eqn.invars]
    if not _is_batched(eqn, batched, size):
        return params
    if name in ops.ELEMENTWISE:
        others = (ops.aval(a) for a, h in zip(eqn.invars, has, strict=True) if not h)
        return params if all(v.shape[:1] in ((), (1,)) for v in others) else None
    if name in _FIRST_STAYS:
        return params if all(has) and _FIRST_STAYS[name](params) else None
    if ops.is_reduction(eqn):
        return params if 0 not in params["axes"] else None
    if eqn.primitive in EXCHANGES:
        # The last operand of a product is its matrix.
        parts = has[:-1] if eqn.primitive is product_p else has
        return params if all(parts) else None
    if name in ops.PRODUCTS:
        return params if _keeps(params["dimension_numbers"], has) else None
    if name == "slice":
        whole = params["start_indices"][0] == 0 and params["limit_indices"][0] == size
        one = params["strides"] is None or params["strides"][0] == 1
        limits = (part, *params["limit_indices"][1:])
        return params | {"limit_indices": limits} if whole and one else None
    if name == "pad":
        only = has == [True, False] and params["padding_config"][0] == (0, 0, 0)
        return params if only else None
    if name == "reshape":
        whole = params["dimensions"] is None and params["new_sizes"][:1] == (size,)
        sizes = (part, *params["new_sizes"][1:])
        return params | {"new_sizes": sizes} if whole else None
    if name == "broadcast_in_dim":
        whole = params["shape"][0] == size and params["broadcast_dimensions"][:1] == (
            0,
        )
        new = _spreads(eqn, size) and not any(has)
        shape = (part, *params["shape"][1:])
        return params | {"shape": shape} if whole or new else None
    return None


def _keeps(numbers: Any, has: list[bool]) -> bool:
    """Whether the first axis of a product's result is the batch of its operands."""
    (ours, theirs), (first, second) = numbers
    if first:
        return all(has) and first[0] == second[0] == 0
    return has == [True, False] and 0 not in ours
