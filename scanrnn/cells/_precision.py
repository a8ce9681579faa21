"""Every dtype decision of the cells, in one place.

- A GEMM, or a convolution, casts its operands to the cell's `dtype` (or, without one,
  to the dtype to which they promote), and accumulates in float32 or wider.
- Everything else (biases, gates, layer-norm statistics) is computed in the widest of
  float32, the parameters, the carry and the input.
- The new carry and the output have the dtype of the old carry. A sum with an input, as
  of `residual`, is computed in that dtype.
"""

import math

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks


def compute_dtype(dtype):
    """Make the `dtype` option a hashable dtype, or None.

    Raises:
        TypeError: if it is not a floating-point dtype of 16 bits or more.
    """
    if dtype is None:
        return None
    if not _checks.is_floating(dtype):
        raise TypeError(
            f"dtype: got {dtype!r}, want a floating-point dtype of 16 bits or more "
            "such as jnp.bfloat16, or None to compute in the dtype of the operands"
        )
    return jnp.dtype(dtype)


def widest(*dtypes):
    """The dtype to which float32 and all of `dtypes` promote."""
    # This promotion is intended, also under jax_numpy_dtype_promotion="strict".
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *dtypes)


def pointwise_dtype(*trees):
    """The dtype in which a cell computes everything but GEMMs."""
    return widest(*(leaf.dtype for leaf in jax.tree.leaves(trees)))


def matmul(x, kernel, dtype):
    """`x @ kernel` with operands in `dtype` and accumulation in float32 or wider.

    Args:
        x: `[..., D]`.
        kernel: `[D, N]`.
        dtype: dtype of the operands; None for the dtype to which they promote.

    Returns:
        `[..., N]`.
    """
    x, kernel = operands(x, kernel, dtype)
    return jnp.matmul(x, kernel, preferred_element_type=widest(x.dtype))


def einsum(formula, x, kernel, dtype):
    """An einsum with operands and accumulation as in `matmul`."""
    x, kernel = operands(x, kernel, dtype)
    return jnp.einsum(formula, x, kernel, preferred_element_type=widest(x.dtype))


def convolve(x, kernel, dtype):
    """A convolution with operands and accumulation as in `matmul`.

    The stride is 1, and `x` is padded with zeros so that its spatial shape stays.

    Args:
        x: `[..., *spatial, C]`.
        kernel: `[*window, C, N]`.
        dtype: dtype of the operands; None for the dtype to which they promote.

    Returns:
        `[..., *spatial, N]`.
    """
    x, kernel = operands(x, kernel, dtype)
    batch = x.ndim - kernel.ndim + 1
    axes = kernel.ndim - 2
    out = jax.lax.conv_general_dilated(
        x.reshape(math.prod(x.shape[:batch]), *x.shape[batch:]),
        kernel,
        (1,) * axes,
        "SAME",
        dimension_numbers=_channels_last(axes),
        preferred_element_type=widest(x.dtype),
    )
    return out.reshape(*x.shape[:-1], kernel.shape[-1])


def _channels_last(axes):
    """The places of the batch, spatial and channel axes in input, kernel and output."""
    data, kernel = (0, axes + 1, *range(1, axes + 1)), (axes + 1, axes, *range(axes))
    return jax.lax.ConvDimensionNumbers(data, kernel, data)


def operands(x, kernel, dtype):
    """Both arrays in `dtype`; None for the dtype to which they promote."""
    if dtype is None:
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.promote_types(x.dtype, kernel.dtype)
    return x.astype(dtype), kernel.astype(dtype)


def widen(tree, dtype):
    """`tree` with every leaf in `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def cast_like(new, old):
    """The carry `new` in the dtypes of the carry `old`."""
    return jax.tree.map(lambda n, o: n.astype(o.dtype), new, old)
