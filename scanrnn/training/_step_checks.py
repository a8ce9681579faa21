"""Checks of what a training step is made of. An error names the argument."""

from typing import Any

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

from scanrnn.cells._checks import is_key


def check_options(
    loss_fn: Any, optimizer: Any, clip: float | None, accumulate: int
) -> None:
    """Raise unless a training step can be made of these.

    Args:
        loss_fn: The loss function.
        optimizer: The optimizer.
        clip: Largest global norm of a gradient; None is accepted.
        accumulate: Number of parts of a batch.

    Raises:
        TypeError: If `loss_fn` is no function, or `optimizer` none of optax.
        ValueError: If `clip` or `accumulate` is not positive.
    """
    if not callable(loss_fn):
        raise TypeError(
            f"loss_fn: got {loss_fn!r}, want a function of (params, carry, batch, key)"
        )
    _check_optimizer(optimizer)
    if clip is not None and not clip > 0:
        raise ValueError(f"clip: got {clip}, want more than 0, or None for no clipping")
    if accumulate < 1:
        raise ValueError(f"accumulate: got {accumulate}, want at least 1")


def check_start(params: Any, optimizer: Any, key: Any, loss_scale: Any) -> None:
    """Raise TypeError unless training can start from these.

    Args:
        params: The parameters, any pytree.
        optimizer: The optimizer.
        key: The PRNG key.
        loss_scale: Flax's `DynamicScale`; None is accepted.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype, name = jnp.result_type(leaf), f"params{jax.tree_util.keystr(path)}"
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"{name}: {dtype} has no gradient; give nnx.state(model, nnx.Param)"
            )
        if jnp.finfo(dtype).bits < 32:
            raise TypeError(
                f"{name}: got {dtype}, want float32, the master weights; to compute in "
                "half precision, give the layers dtype=jnp.bfloat16"
            )
    _check_optimizer(optimizer)
    _check_key(key)
    if loss_scale is not None and not isinstance(loss_scale, DynamicScale):
        raise TypeError(
            f"loss_scale: got {loss_scale!r}, want DynamicScale(scale=...) of "
            "flax.training.dynamic_scale, or None for no scaling"
        )


def first_opt_state(optimizer: Any, state: Any) -> Any:
    """What an optimizer starts from, for the parameters of a training step's state.

    Args:
        optimizer: The optimizer.
        state: The state.

    Raises:
        ValueError: If `state.opt_state` is that of another optimizer.
    """
    first = optimizer.init(state.params)
    if jax.tree.structure(state.opt_state) != jax.tree.structure(first):
        raise ValueError(
            "state: opt_state is that of another optimizer or of other parameters; "
            "give init_state and make_train_step the same ones"
        )
    return first


def _check_key(key):
    """Raise TypeError unless it is one PRNG key: a typed one, or its two numbers."""
    if not is_key(key) or key.ndim != (key.dtype == jnp.uint32):
        of_shape = f" of shape {key.shape}" if hasattr(key, "shape") else ""
        raise TypeError(
            f"key: got a {type(key).__name__}{of_shape}, want one PRNG key such as "
            "jax.random.key(0)"
        )


def _check_optimizer(optimizer):
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise TypeError(
            f"optimizer: got {optimizer!r}, want one of optax such as optax.adam(1e-3)"
        )
