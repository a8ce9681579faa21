"""Inverses of triangular matrices, by products of matrices alone.

A substitution takes one step after the other. Halves need log2(L) products one after
the other: the inverse of `[[A, 0], [-C, B]]` is `[[A^-1, 0], [B^-1 C A^-1, B^-1]]`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

_product = functools.partial(jnp.matmul, precision="highest")


@jax.custom_jvp
def inverse(M):
    """The inverse of `I - M`, for strictly lower triangular matrices `[..., L, L]`."""
    size = M.shape[-1]
    if size <= 2:
        return jnp.eye(size, dtype=M.dtype) + M
    half = -(-size // 2)
    if size % 2:
        edges = [*[(0, 0)] * (M.ndim - 2), (0, 1), (0, 1)]
        return inverse(jnp.pad(M, edges))[..., :size, :size]
    A, B = inverse(jnp.stack([M[..., :half, :half], M[..., half:, half:]]))
    C = _product(_product(B, M[..., half:, :half]), A)
    rows = [A, jnp.zeros_like(C)], [C, B]
    return jnp.concatenate([jnp.concatenate(row, -1) for row in rows], -2)


@inverse.defjvp
def _tangent(primals, tangents):
    (M,), (dM,) = primals, tangents
    X = inverse(M)
    return X, _product(_product(X, dM), X)
