"""Affine recurrences in parallel, as an expert writes them for one loop.

Their gradients are written by hand, too: the reverse scan keeps the factors and the
values alone.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

STEPS = 16  # of a chunk


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def affine(a, b, reverse=False):
    """All `h` of `h = a * h + b`, from `h = 0` on; a and b are `[T, ...]`."""
    return lax.associative_scan(_next, (a, b), reverse=reverse)[1]


def _next(early, late):
    return early[0] * late[0], late[0] * early[1] + late[1]


def _forward(a, b, reverse):
    h = affine(a, b, reverse)
    return h, (a, h)


def _backward(reverse, kept, cotangent):
    a, h = kept
    d_b = affine(_moved(a, not reverse), cotangent, not reverse)
    return d_b * _moved(h, reverse), d_b


affine.defvjp(_forward, _backward)


def _moved(array, reverse):
    """The array one step later in time, or one step earlier; zeros come in."""
    edge = jnp.zeros_like(array[:1])
    parts = [array[1:], edge] if reverse else [edge, array[:-1]]
    return jnp.concatenate(parts)


def in_chunks(a, b, reverse=False):
    """`affine` in chunks: all chunks side by side, then their ends, then again.

    JAX differentiates it. T must be a multiple of `STEPS`.
    """
    if reverse:
        return in_chunks(a[::-1], b[::-1])[::-1]
    chunks = len(a) // STEPS, STEPS
    lanes = [v.reshape(*chunks, *v.shape[1:]).swapaxes(0, 1) for v in (a, b)]
    nothing = jnp.ones_like(lanes[0][0]), jnp.zeros_like(lanes[1][0])
    ends, _ = lax.scan(lambda whole, x: (_next(whole, x), None), nothing, (*lanes,))
    start = _moved(affine(*ends), False)
    _, h = lax.scan(lambda h, x: (x[0] * h + x[1],) * 2, start, (*lanes,))
    return h.swapaxes(0, 1).reshape(b.shape)
