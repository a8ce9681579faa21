"""The base class of cells of linear attention: their memory is a matrix per head."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._frame import FramedCell

LEAST_SQUARE = 1e-6  # added to the square of a length before it divides


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixMemory(FramedCell):
    """A cell whose heads have memories `S`, with one row for each feature of v."""

    emits = None

    heads: int = 1
    dtype: Any = None

    def __post_init__(self):
        """Check the options."""
        _checks.check_size(self.name, "heads", self.heads)
        self._set(dtype=_precision.compute_dtype(self.dtype))

    def gate_biases(self):
        """No gate has a forget bias."""
        return {}

    def keeps(self):
        """No gate has a bias that `chrono` could draw."""
        return {}

    def check_sizes(self, in_features, hidden_features):
        """Raise ValueError unless the heads share the features evenly."""
        _checks.check_heads(self.name, hidden_features, self.heads)

    def carry_shapes(self, hidden_features):
        """One square matrix for each head."""
        d = hidden_features // self.heads
        return {"S": (self.heads, d, d)}

    def apart(self, x):
        """Split the features into heads: `[..., heads, H/heads]`."""
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)


def joined(x):
    """Join the features of all heads on the last axis."""
    return x.reshape(*x.shape[:-2], math.prod(x.shape[-2:]))


def outer(v, k):
    """The outer product `v k'` of each head."""
    return v[..., :, None] * k[..., None, :]


def read(S, q):
    """`S q` of each head: a sum and not a GEMM, so it is as precise as S."""
    return jnp.sum(S * q[..., None, :], axis=-1)


def of_length_one(k):
    """Vectors divided by their lengths; a vector of zeros stays as it is."""
    return k * jax.lax.rsqrt(jnp.sum(k * k, axis=-1, keepdims=True) + LEAST_SQUARE)


def step_bias(key, shape, dtype):
    """Biases whose softplus is log-uniform from 0.001 to 0.1."""
    low, high = math.log(1e-3), math.log(1e-1)
    step = jnp.exp(jax.random.uniform(key, shape, dtype, low, high))
    return step + jnp.log(-jnp.expm1(-step))


def log_rates(key, shape, dtype):
    """Logarithms of rates that are uniform from 1 to 16."""
    return jnp.log(jax.random.uniform(key, shape, dtype, 1.0, 16.0))
