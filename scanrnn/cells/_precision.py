"""Every dtype decision of the cells, in one place.

- A GEMM casts its operands to the cell's `dtype` (left out: to the type they promote
  to), and accumulates in float32 or wider.
- Everything else (biases, gates, layer-norm statistics) is computed in the widest of
  float32, the parameters, the carry and the input.
- The new carry, and the output with it, has the old carry's dtype.
"""

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks


def compute_dtype(dtype):
    """The `dtype` option as a hashable dtype, or None.

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
    """The dtype that float32 and all of `dtypes` promote to."""
    # The promotion is meant, so it holds under jax_numpy_dtype_promotion="strict" too.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *dtypes)


def pointwise_dtype(*trees):
    """The dtype in which a cell computes all that is not a GEMM."""
    return widest(*(leaf.dtype for leaf in jax.tree.leaves(trees)))


def matmul(x, kernel, dtype):
    """`x @ kernel` with operands in `dtype` and accumulation in float32 or wider.

    Args:
        x: `[..., D]`.
        kernel: `[D, N]`.
        dtype: of the operands; None for the dtype they promote to.

    Returns:
        `[..., N]`.
    """
    if dtype is None:
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.promote_types(x.dtype, kernel.dtype)
    return jnp.matmul(
        x.astype(dtype), kernel.astype(dtype), preferred_element_type=widest(dtype)
    )


def widen(tree, dtype):
    """`tree` with every leaf in `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def vectors(params, like):
    """The one-dimensional `params`, ready to meet an array such as `like` elementwise.

    The leading axes are explicit, so that jax_numpy_rank_promotion="raise" is content.
    """
    leading = tuple(range(like.ndim - 1))
    return {
        name: jnp.expand_dims(value.astype(like.dtype), leading)
        for name, value in params.items()
        if value.ndim == 1
    }


def cast_like(new, old):
    """The carry `new` in the dtypes of the carry `old`."""
    return jax.tree.map(lambda n, o: n.astype(o.dtype), new, old)
