"""Which axes of a result are axes of an operand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops

Pairs = list[tuple[int, int]]


def kept_axes(eqn: JaxprEqn, side: int, stays: Iterable[str]) -> Pairs | None:
    """The axes of an operand, each with the same axis of the result; None if unknown.

    `stays` are the primitives that leave every axis where it is. What a reshape does is
    unknown here: see `of_reshape`.
    """
    name, params = eqn.primitive.name, eqn.params
    count = ops.aval(eqn.invars[side]).ndim
    if name in stays:
        return [(i, i) for i in range(count)]
    if name == "transpose":
        return [(i, j) for j, i in enumerate(params["permutation"])]
    if name == "broadcast_in_dim":
        return list(enumerate(params["broadcast_dimensions"]))
    if ops.is_reduction(eqn):
        kept = [i for i in range(count) if i not in params["axes"]]
        return [(i, j) for j, i in enumerate(kept)]
    return _of_product(eqn, side) if name in ops.PRODUCTS else None


def of_reshape(old: Sequence[int], new: Sequence[int]) -> Pairs | None:
    """The axes of a reshape that only adds or drops axes of size 1; None for others.

    They are pairs of axes that are longer than 1.
    """
    ours, theirs = ([i for i, size in enumerate(s) if size != 1] for s in (old, new))
    same = [old[i] for i in ours] == [new[j] for j in theirs]
    return list(zip(ours, theirs, strict=True)) if same else None


def _of_product(eqn: JaxprEqn, side: int) -> Pairs:
    """The axes of a factor that are in the product: of the batch first, then others."""
    contracted, batch = eqn.params["dimension_numbers"]
    own = [
        [i for i in range(ops.aval(v).ndim) if i not in (*contracted[k], *batch[k])]
        for k, v in enumerate(eqn.invars)
    ]
    start = len(batch[0]) + (len(own[0]) if side else 0)
    pairs = [(i, j) for j, i in enumerate(batch[side])]
    return pairs + [(i, start + j) for j, i in enumerate(own[side])]
