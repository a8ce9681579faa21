"""Sums of products of arrays over steps, or over an axis of S."""

from __future__ import annotations

import string

import jax.numpy as jnp


def sum_over(rank: int, lead: str, over: int | None, *terms):
    """Sum a product of arrays over an axis of S and over steps that are not in `lead`.

    Each term is the names of its axes of steps, and the array.
    """
    names, written, arrays, found = string.ascii_uppercase, [], [], set()
    for steps, array in terms:
        wide = [i for i in range(rank) if array.shape[len(steps) + i] > 1]
        written.append(steps + "".join(names[i] for i in wide))
        arrays.append(array.reshape([n for k, n in enumerate(array.shape)
                                     if k < len(steps) or n > 1]))  # fmt: skip
        found |= {*wide}
    kept = sorted(found - {over})
    out = lead + "".join(names[i] for i in kept)
    # As precise as a sum over S itself.
    total = jnp.einsum(f"{','.join(written)}->{out}", *arrays, precision="highest")
    sizes = dict(zip(kept, total.shape[len(lead) :], strict=True))
    return total.reshape(
        *total.shape[: len(lead)], *(sizes.get(i, 1) for i in range(rank))
    )
