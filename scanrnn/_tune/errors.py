"""How far the results of a program are from those of another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

# The largest error of a program that is right. ROUNDED is for half precision, and for a
# TPU, whose products round float32 to bfloat16.
EXACT, ROUNDED = 1e-3, 4e-2
# Some gradients are zero but for rounding, as that of a stabiliser. Their error is
# divided by this share of the largest array instead.
_LEAST = 1e-4


def error(got: Sequence, wanted: Sequence) -> float:
    """The largest error of an array, in its 2-norm and relative to that of `wanted`.

    Infinite if an error is not finite, or if arrays that are not floats differ at all.
    """
    norms = [_norm(a) if _is_float(a) else 0.0 for a in wanted]
    least = max(_LEAST * max(norms, default=0.0), float(jnp.finfo("float32").tiny))
    pairs = zip(got, wanted, norms, strict=True)
    found = [_off(a, b) / max(norm, least) for a, b, norm in pairs]
    return max(found, default=0.0) if all(map(math.isfinite, found)) else math.inf


def largest(wanted: Sequence) -> float:
    """The largest error that is allowed against these arrays."""
    half = any(jnp.finfo(a.dtype).bits < 32 for a in filter(_is_float, wanted))
    tpu = any(device.platform == "tpu" for a in wanted for device in a.devices())
    return ROUNDED if half or tpu else EXACT


def _is_float(array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def _off(got, wanted) -> float:
    if _is_float(wanted):
        return _norm(_wide(got) - _wide(wanted))
    return 0.0 if bool(jnp.all(got == wanted)) else math.inf


def _wide(array):
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _norm(array) -> float:
    return float(jnp.linalg.norm(jnp.ravel(_wide(array))))
