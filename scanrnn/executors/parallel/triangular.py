"""Inverses of triangular matrices, by products of matrices alone.

A substitution takes one step after the other. Halves need log2(L) products one after
the other: the inverse of `[[P, 0], [-Q, R]]` is `[[A, 0], [B Q A, B]]`, where A is the
inverse of P and B that of R.
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
        return jnp.broadcast_to(jnp.eye(size, dtype=M.dtype), M.shape) + M
    if size % 2:
        edges = [*[(0, 0)] * (M.ndim - 2), (0, 1), (0, 1)]
        return inverse(jnp.pad(M, edges))[..., :size, :size]
    half = size // 2
    A, B = inverse(jnp.stack([M[..., :half, :half], M[..., half:, half:]]))
    C = _product(_product(B, M[..., half:, :half]), A)
    return of_halves(A, C, B, (-2, -1))


def of_halves(A, C, B, axes: tuple[int, int]):
    """The matrix `[[A, 0], [C, B]]`; its rows and columns are two axes of an array."""
    rows, columns = axes
    halves = [A, jnp.zeros_like(C)], [C, B]
    return jnp.concatenate([jnp.concatenate(half, columns) for half in halves], rows)


@inverse.defjvp
def _tangent(primals, tangents):
    (M,), (dM,) = primals, tangents
    X = inverse(M)
    return X, _product(_product(X, dM), X)
