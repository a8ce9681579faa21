"""What the cells of linear attention have in common: a matrix for every head."""

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
    """A cell whose heads have memories `S`, a row for every feature of the values."""

    emits = None

    heads: int = 1
    dtype: Any = None

    def __post_init__(self):
        """Refuse unknown options."""
        _checks.check_size(self.name, "heads", self.heads)
        self._set(dtype=_precision.compute_dtype(self.dtype))

    def gate_biases(self):
        """No gate keeps the memory by its bias alone."""
        return {}

    def keeps(self):
        """As there is none, no scheme of gates says where it starts."""
        return {}

    def check_sizes(self, in_features, hidden_features):
        """Raise ValueError unless the heads share the features evenly."""
        if hidden_features % self.heads:
            raise ValueError(
                f"{self.name}: hidden_features={hidden_features} does not divide into "
                f"heads={self.heads}"
            )

    def carry_shapes(self, hidden_features):
        """Of every head a square matrix."""
        d = hidden_features // self.heads
        return {"S": (self.heads, d, d)}

    def apart(self, x):
        """The features head by head."""
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)


def joined(x):
    """The features of all heads side by side."""
    return x.reshape(*x.shape[:-2], math.prod(x.shape[-2:]))


def outer(v, k):
    """`v k'` of every head."""
    return v[..., :, None] * k[..., None, :]


def read(S, q):
    """`S q` of every head: a sum and no GEMM, as precise as S is."""
    return jnp.sum(S * q[..., None, :], axis=-1)


def of_length_one(k):
    """Vectors divided by their lengths; zeros stay."""
    return k * jax.lax.rsqrt(jnp.sum(k * k, axis=-1, keepdims=True) + LEAST_SQUARE)


def step_bias(key, shape, dtype):
    """Biases of which softplus is log-uniform from 0.001 to 0.1."""
    low, high = math.log(1e-3), math.log(1e-1)
    step = jnp.exp(jax.random.uniform(key, shape, dtype, low, high))
    return step + jnp.log(-jnp.expm1(-step))


def log_rates(key, shape, dtype):
    """Logarithms of rates that are uniform from 1 to 16."""
    return jnp.log(jax.random.uniform(key, shape, dtype, 1.0, 16.0))
