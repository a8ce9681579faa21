"""The parameters within one step, and how they are multiplied with."""

import jax
import jax.numpy as jnp

from scanrnn.cells import _precision


class Weights:
    """Parameters by name: `p["bias"]` is ready to meet an activation elementwise.

    What is no GEMM is computed in one dtype, `dtype`, the widest of float32, the
    parameters, the carry and the input; see `_precision`.
    """

    def __init__(self, params, carry, x, operands, rows):
        """Of one step.

        Args:
            params: arrays by name.
            carry: as it came; with `params` and `x` it decides the dtype.
            x: likewise.
            operands: the dtype of GEMM operands, or None.
            rows: how many axes before the features an activation has.
        """
        self.dtype = _precision.pointwise_dtype(params, carry, x)
        self._params, self._operands = params, operands
        self._leading = tuple(range(rows))

    def __getitem__(self, name):
        """A parameter in the dtype of pointwise arithmetic.

        Its leading axes are explicit: jax_numpy_rank_promotion="raise" is content.
        """
        value = _gathered(self._params[name].astype(self.dtype))
        return jnp.expand_dims(value, self._leading)

    def __contains__(self, name):
        return name in self._params

    def dot(self, a, name, columns=slice(None)):
        """`a @ p[name]` with the operands of a GEMM; `columns` are a part of it."""
        kernel = self._params[name][..., columns]
        product = _precision.matmul(a, kernel, self._operands)
        return _gathered(product).astype(self.dtype)

    def convolve(self, a, name, columns=slice(None)):
        """`a` under the window `p[name]`, with the operands and columns of `dot`."""
        kernel = self._params[name][..., columns]
        product = _precision.convolve(a, kernel, self._operands)
        return _gathered(product).astype(self.dtype)

    def einsum(self, formula, a, kernel):
        """An einsum of `a` and an unwidened `kernel` with the operands of a GEMM."""
        product = _precision.einsum(formula, a, kernel, self._operands)
        return product.astype(self.dtype)

    def reshaped(self, name, shape):
        """A matrix as it came, for `einsum`, in another shape."""
        return self._params[name].reshape(shape)

    def width(self, name):
        """The size of the last axis of a parameter."""
        return self._params[name].shape[-1]

    def wide(self, a):
        """Activations in the dtype of pointwise arithmetic: an array or a carry."""
        return _precision.widen(a, self.dtype)


def _gathered(a):
    """An array whose features are whole on every device.

    A matrix that is sharded over its columns gives every device some gates; gathered
    here, once, they meet elementwise at no further cost, and the carry stays whole.
    """
    sharding = jax.typeof(a).sharding
    if not sharding.spec or sharding.spec[-1] is None:
        return a
    return jax.sharding.reshard(a, jax.P(*sharding.spec[:-1], None))
