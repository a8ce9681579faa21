"""Masks: random numbers that a cell is given, drawn before its loop."""

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks


def check_rate(where, name, rate):
    """Raise unless `rate` is a probability below one; return it as a float."""
    rate = _checks.check_number(where, name, rate)
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{where}: {name}={rate!r}, want a probability in [0, 1)")
    return rate


def dropout_mask(key, rate, shape, dtype):
    """Zeros with probability `rate`, else what keeps the mean: 1 / (1 - rate)."""
    kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return kept.astype(dtype) / (1.0 - rate)


def one_step(xs):
    """The type of one step of inputs `[T, ...]`. Not of `xs[0]`: T may be 0."""
    return jax.eval_shape(lambda xs: jnp.sum(xs, axis=0, dtype=xs.dtype), xs)
