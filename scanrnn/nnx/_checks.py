"""Errors at the door of the layers: which argument, what came, what was wanted."""

import operator

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn._scan import EXECUTORS
from scanrnn.cells import Cell
from scanrnn.cells._checks import check_option, check_size, is_floating
from scanrnn.cells._noise import check_rate


def check_scan_options(implementation, unroll):
    """Raise unless `scanrnn.scan` takes these; return `unroll` as a bool or int."""
    check_option("RNN", "implementation", implementation, (None, *EXECUTORS))
    if isinstance(unroll, bool):
        return unroll
    try:
        steps = operator.index(unroll)
    except TypeError:
        steps = None
    if steps is None:
        raise TypeError(f"RNN: unroll must be a bool or an int, got {unroll!r}")
    if steps < 0:
        raise ValueError(f"RNN: unroll must be at least 0, got {unroll!r}")
    return steps


def check_constructor(rnn, rngs):
    """Raise unless the arguments that `rnn` was given can make a layer.

    Returns:
        The stream of `rngs` that draws the weights.
    """
    if not isinstance(rnn.cell, Cell):
        raise TypeError(
            "RNN: cell must be a scanrnn.cells.Cell such as scanrnn.cells.lstm(), or a "
            f"flax.nnx.RNNCellBase, got {rnn.cell!r}"
        )
    for name in ("in_features", "hidden_features", "num_layers"):
        check_size("RNN", name, getattr(rnn, name))
    for name in ("param_dtype", "carry_dtype"):
        dtype = getattr(rnn, name)
        if dtype is not None and not is_floating(dtype):
            raise TypeError(
                f"RNN: {name} must be a floating dtype of 16 bits or more, got "
                f"{dtype!r}"
            )
    check_option("RNN", "residual", rnn.residual, (False, True, "gnmt"))
    rnn.dropout = check_rate("RNN", "dropout", rnn.dropout)
    if rnn.highway and (rnn.bidirectional or rnn.residual):
        raise ValueError(
            "RNN: highway is a connection round one cell: it does not go with "
            "bidirectional, whose outputs are wider, nor with residual"
        )
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"RNN: rngs must be an nnx.Rngs, got {rngs!r}; try nnx.Rngs(0)")
    return rngs.params


def check_rngs(rngs):
    """Raise unless a call can draw from these."""
    if rngs is not None and not isinstance(rngs, nnx.Rngs | nnx.RngStream):
        raise TypeError(
            f"RNN: rngs must be None, an nnx.Rngs or an nnx.RngStream, got {rngs!r}; "
            "try nnx.Rngs(0)"
        )


def check_inputs(inputs, in_features, feature_axes):
    """Raise unless `inputs` has a time axis and the right features."""
    want = "[T, D]" if feature_axes == 1 else f"time and {feature_axes} feature axes"
    if jnp.ndim(inputs) < feature_axes + 1:
        raise ValueError(
            f"RNN: inputs has shape {jnp.shape(inputs)}, want at least {want}; "
            "batch axes are optional, time is not"
        )
    if in_features is not None and inputs.shape[-1] != in_features:
        raise ValueError(
            f"RNN: inputs has {inputs.shape[-1]} features (shape {inputs.shape}), want "
            f"in_features={in_features} on its last axis"
        )


def check_initial_carry(given, wanted, same_dtype=True):
    """Raise unless the carry `given` is like `wanted`; return it as arrays.

    Args:
        given: the carry that came.
        wanted: a carry of arrays, or of their shapes and dtypes.
        same_dtype: False if only the structure and the shapes must be alike.
    """
    structure = jax.tree.structure(wanted)
    if jax.tree.structure(given) != structure:
        raise TypeError(
            f"RNN: initial_carry has the structure {jax.tree.structure(given)}, want "
            f"{structure}, as return_carry=True gives it"
        )
    given = jax.tree.map(jnp.asarray, given)
    paths = jax.tree_util.tree_leaves_with_path(wanted)
    for (path, want), leaf in zip(paths, jax.tree.leaves(given), strict=True):
        name = f"initial_carry{jax.tree_util.keystr(path)}"
        if leaf.shape != want.shape:
            raise ValueError(
                f"RNN: {name} has shape {leaf.shape}, want {want.shape}: the batch "
                "axes of inputs, then the hidden features"
            )
        if same_dtype and leaf.dtype != want.dtype:
            raise TypeError(
                f"RNN: {name} has dtype {leaf.dtype}, want {want.dtype}; cast it, or "
                f"make the layer with carry_dtype={leaf.dtype}"
            )
    return given
