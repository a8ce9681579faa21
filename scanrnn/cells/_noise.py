"""Masks of dropout, and the check of their rates."""

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
    """A mask: 0 with probability `rate`, else 1 / (1 - rate), which keeps the mean."""
    kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return kept.astype(dtype) / (1.0 - rate)


def one_step(xs):
    """Shape and dtype of one step of inputs `[T, ...]`. T may be 0, so not `xs[0]`."""
    return jax.eval_shape(lambda xs: jnp.sum(xs, axis=0, dtype=xs.dtype), xs)
