"""How far the results of a program are from those of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

# The largest error of a program that is right. TF32 is for float32 on a GPU, whose
# products round it to 11 significant bits: on an H100 gradients are off by up to 1e-3.
# ROUNDED is for half precision, and for a TPU, whose products are of bfloat16.
EXACT, TF32, ROUNDED = 1e-3, 1e-2, 4e-2
# Some gradients are zero but for rounding, as that of a stabiliser. Their error is
# divided by this share of the largest gradient instead; or of the largest array of all,
# if all gradients are, as those of the sum of a softmax.
_LEAST, _LEAST_OF_ALL = 1e-4, 1e-6


def error(got: Sequence, wanted: Sequence) -> float:
    """The largest error of an array among the results of a program.

    Both are the results of a program: a pair, such as values and gradients. The error
    of an array is the 2-norm of its difference, divided by that of `wanted`, or by 1e-4
    of the largest one in the same half of the pair, or by 1e-6 of the largest of all,
    whichever is more. It is infinite if arrays are not finite in different places, or
    if arrays that are not floats differ at all.
    """
    norms = [list(map(_size, jax.tree.leaves(half))) for half in wanted]
    most = [max(half, default=0.0) for half in norms]
    tiny = float(jnp.finfo("float32").tiny)
    found = [0.0]
    for ours, theirs, half, own in zip(got, wanted, norms, most, strict=True):
        least = max(_LEAST * own, _LEAST_OF_ALL * max(most), tiny)
        arrays = map(jax.tree.leaves, (ours, theirs))
        for a, b, norm in zip(*arrays, half, strict=True):
            found.append(_off(a, b) / max(norm, least))
    return max(found)


def largest(wanted: Any) -> float:
    """The largest error that is allowed against these arrays."""
    leaves = jax.tree.leaves(wanted)
    bits = min((jnp.finfo(a.dtype).bits for a in filter(_is_float, leaves)), default=64)
    platforms = {device.platform for a in leaves for device in a.devices()}
    if bits < 32 or "tpu" in platforms:
        return ROUNDED
    return TF32 if bits == 32 and "gpu" in platforms else EXACT


def _is_float(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def _size(array) -> float:
    return _norm(_finite(array)) if _is_float(array) else 0.0


def _off(got, wanted) -> float:
    if not _is_float(wanted):
        return 0.0 if bool(jnp.all(got == wanted)) else math.inf
    finite = jnp.isfinite(wanted)
    same = jnp.where(finite, jnp.isfinite(got), (got == wanted) | (got != got))
    if not bool(jnp.all(same)):
        return math.inf
    return _norm(_finite(got) - _finite(wanted))


def _finite(array):
    """The array in float32 or wider, with zeros where it is not finite."""
    wide = array.astype(jnp.promote_types(array.dtype, jnp.float32))
    return jnp.where(jnp.isfinite(wide), wide, 0)


def _norm(array) -> float:
    return float(jnp.linalg.norm(jnp.ravel(array)))
