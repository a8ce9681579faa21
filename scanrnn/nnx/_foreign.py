"""Flax's own cells inside our layer."""

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn.nnx import _checks

_UNUSED = {  # what a layer of a Flax cell is given for the arguments that it refuses
    "in_features": None,
    "hidden_features": None,
    "num_layers": 1,
    "bidirectional": False,
    "residual": False,
    "highway": False,
    "dropout": 0.0,
    "param_dtype": jnp.float32,
    "carry_dtype": None,
}


def check(rnn, initializers):
    """Raise unless `rnn` was given a stateless Flax cell, and nothing about weights."""
    cell = rnn.cell
    refused = [name for name, value in _UNUSED.items() if getattr(rnn, name) != value]
    refused += list(initializers)
    if refused:
        raise ValueError(
            f"RNN: got {', '.join(refused)} beside a {type(cell).__name__}, which has "
            "its sizes, dtypes and weights in it; they go with a scanrnn.cells.Cell"
        )
    kept = nnx.to_flat_state(nnx.state(cell, nnx.Not(nnx.Param)))
    if len(kept):
        raise ValueError(
            f"RNN: the {type(cell).__name__} keeps {[path for path, _ in kept]}, want "
            "a cell with nothing but nnx.Param; run this one in flax.nnx.RNN"
        )


def num_feature_axes(cell):
    """How many trailing axes of its input are one step's features, ours or Flax's."""
    return cell.num_feature_axes


def num_features(cell):
    """How many features the cell says it takes, or None if it does not say."""
    size = getattr(cell, "in_features", None)
    return size if isinstance(size, int) and num_feature_axes(cell) == 1 else None


def checked_carry(cell, x, given):
    """The carry `given`, if it has the structure and shapes of the cell's own.

    Its dtype may be another: a cell that computes in a wider one than its weights'
    needs that.

    Args:
        cell: a Flax cell.
        x: one time step of the input, batch axes first.
        given: the carry that came.
    """
    if type(cell).initialize_carry is nnx.RNNCellBase.initialize_carry:
        return given  # the cell has none of its own, so there is nothing to compare
    wanted = jax.eval_shape(lambda: cell.initialize_carry(x.shape, nnx.Rngs(0)))
    return _checks.check_initial_carry(given, wanted, same_dtype=False)


def initial_carry(cell, x, rngs):
    """The cell's own initial carry, sharded as `x` is.

    Args:
        cell: a Flax cell.
        x: one time step of the input, batch axes first.
        rngs: what draws it, as for `flax.nnx.RNN`; None for the same at every call.
    """
    if isinstance(rngs, nnx.Rngs):
        rngs = rngs.carry.fork()
    # The stream is made here, so that the layer keeps none.
    carry = cell.initialize_carry(x.shape, nnx.Rngs(0) if rngs is None else rngs)
    features = tuple(range(x.ndim - num_feature_axes(cell), x.ndim))
    zeros = jnp.zeros_like(jnp.sum(x, axis=features))

    def shard(leaf):
        if leaf.shape[: zeros.ndim] != zeros.shape:
            return leaf
        trailing = tuple(range(zeros.ndim, leaf.ndim))
        return leaf + jnp.expand_dims(zeros, trailing).astype(leaf.dtype)

    return jax.tree.map(shard, carry)
