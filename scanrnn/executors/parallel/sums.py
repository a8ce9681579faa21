"""Sums of products of arrays over steps, or over an axis of S."""

from __future__ import annotations

import string

import jax.numpy as jnp


def sum_over(rank: int, lead: str, over: int | None, *terms):
    """Sum a product of arrays over an axis of S, and over axes of steps.

    Args:
      rank: the number of axes of S.
      lead: the letters of the axes of steps that stay; other axes of steps are summed.
      over: the axis of S that is summed, if any.
      *terms: pairs of the letters of an array's axes of steps, and the array: these
        axes, then those of S, of size 1 where it is constant.

    Returns:
      An array with the axes in `lead`, then those of S.
    """
    names, written, arrays, found = string.ascii_uppercase, [], [], set()
    for steps, array in terms:
        spanned = [i for i in range(rank) if array.shape[len(steps) + i] != 1]
        written.append(steps + "".join(names[i] for i in spanned))
        unit = [len(steps) + i for i in range(rank) if i not in spanned]
        arrays.append(jnp.squeeze(array, unit))
        found |= {*spanned}
    kept = sorted(found - {over})
    out = lead + "".join(names[i] for i in kept)
    # As precise as a sum over S itself.
    total = jnp.einsum(f"{','.join(written)}->{out}", *arrays, precision="highest")
    return jnp.expand_dims(total, [len(lead) + i for i in range(rank) if i not in kept])
