"""The parameters within one step, and the products with them."""

import jax
import jax.numpy as jnp

from scanrnn.cells import _precision


class Weights:
    """Parameters by name: `p["bias"]` can be added to an activation as it is.

    Everything but GEMMs is computed in `dtype`: the widest of float32, the parameters,
    the carry and the input; see `_precision`.
    """

    def __init__(self, params, carry, x, operands, rows):
        """Keep the parameters of one step.

        Args:
            params: arrays by name.
            carry: the carry before the step; it, `params` and `x` decide the dtype.
            x: the input of the step.
            operands: the dtype of GEMM operands; None for no cast.
            rows: number of axes that an activation has before its features.
        """
        self.dtype = _precision.pointwise_dtype(params, carry, x)
        self._params, self._operands = params, operands
        self._leading = tuple(range(rows))

    def __getitem__(self, name):
        """A parameter in the dtype of elementwise operations.

        It has as many axes as an activation, so that it is accepted under
        jax_numpy_rank_promotion="raise".
        """
        value = _gathered(self._params[name].astype(self.dtype))
        return jnp.expand_dims(value, self._leading)

    def __contains__(self, name):
        return name in self._params

    def biased(self, a, name="bias", columns=slice(None)):
        """`a + p[name][..., columns]` if the cell has this bias, else `a`."""
        return a + self[name][..., columns] if name in self else a

    def dot(self, a, name, columns=slice(None)):
        """`a @ p[name][..., columns]`, with operands in the dtype of GEMMs."""
        kernel = self._params[name][..., columns]
        product = _precision.matmul(a, kernel, self._operands)
        return _gathered(product).astype(self.dtype)

    def convolve(self, a, name, columns=slice(None)):
        """`a` convolved with `p[name][..., columns]`, with operands as in `dot`."""
        kernel = self._params[name][..., columns]
        product = _precision.convolve(a, kernel, self._operands)
        return _gathered(product).astype(self.dtype)

    def einsum(self, formula, a, kernel):
        """An einsum of `a` and a `kernel` from `reshaped`, operands as in `dot`."""
        product = _precision.einsum(formula, a, kernel, self._operands)
        return product.astype(self.dtype)

    def reshaped(self, name, shape):
        """A matrix in its own dtype and in another shape, for `einsum`."""
        return self._params[name].reshape(shape)

    def width(self, name):
        """The size of the last axis of a parameter."""
        return self._params[name].shape[-1]

    def wide(self, a):
        """An array or a carry in the dtype of elementwise operations."""
        return _precision.widen(a, self.dtype)


def _gathered(a):
    """An array whose features are whole on every device.

    With a matrix that is sharded over its columns, each device computes some gates.
    Here they are gathered once: elementwise operations then need no communication, and
    the carry is not sharded over its features.
    """
    sharding = jax.typeof(a).sharding
    if not sharding.spec or sharding.spec[-1] is None:
        return a
    return jax.sharding.reshard(a, jax.P(*sharding.spec[:-1], None))
