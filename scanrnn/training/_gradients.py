"""Gradients of scaled losses, at once or part by part."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

GradFn = Callable[[Any, Any, jax.Array], tuple[Any, jax.Array, Any, jax.Array]]


def rescale(loss_scale: DynamicScale | None, finite: jax.Array) -> DynamicScale | None:
    """Moves a loss scale by what became of a step.

    It is the rule of Flax's own `DynamicScale.value_and_grad`, which differentiates
    one loss at a time and looks at nothing but its gradient: a step of several parts,
    or with an update that is not finite, needs the rule alone.

    Args:
        loss_scale: The scale of the step; None stays None.
        finite: Whether all of the step was finite.

    Returns:
        The scale of the next step: smaller by `backoff_factor` after a step that was
        not finite, larger by `growth_factor` after `growth_interval` that were.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax.training.dynamic_scale import DynamicScale
        >>> float(rescale(DynamicScale(scale=jnp.float32(8)), jnp.bool_(False)).scale)
        4.0
    """
    if loss_scale is None:
        return None
    grow = finite & (loss_scale.fin_steps == loss_scale.growth_interval)
    larger = loss_scale.scale * loss_scale.growth_factor
    larger = jnp.minimum(larger, jnp.finfo(jnp.float32).max)
    smaller = loss_scale.scale * loss_scale.backoff_factor
    if loss_scale.minimum_scale is not None:
        smaller = jnp.maximum(smaller, loss_scale.minimum_scale)
    scale = jnp.where(grow, larger, jnp.where(finite, loss_scale.scale, smaller))
    fin_steps = jnp.where(grow | ~finite, 0, loss_scale.fin_steps + 1)
    return loss_scale.replace(scale=scale, fin_steps=fin_steps)


def scaled_grad(loss_fn: Callable, params: Any, scale: jax.Array) -> GradFn:
    """Makes the function that gives the gradient of a part of a batch.

    Args:
        loss_fn: As `make_train_step` takes it.
        params: The parameters.
        scale: What the loss is multiplied by, and its gradient divided by.

    Returns:
        A function of carry, batch and key. It gives the unscaled gradient, the loss,
        the next carry, and 0 or NaN: whether outputs and carry are finite.
    """

    def scaled_loss(params, carry, batch, key):
        loss, (carry, outputs) = loss_fn(params, carry, batch, key)
        if jnp.finfo(loss.dtype).bits < 32:
            raise TypeError(
                f"loss_fn: got a loss of {loss.dtype}, want float32: a half type "
                "overflows when it is scaled; cast the model's outputs before the loss"
            )
        return loss * scale.astype(loss.dtype), (loss, carry, outputs)

    def grad(carry, batch, key):
        grad_fn = jax.grad(scaled_loss, has_aux=True)
        grads, (loss, carry, outputs) = grad_fn(params, carry, batch, key)
        grads = jax.tree.map(lambda g: g / scale.astype(g.dtype), grads)
        finite = not_finite((outputs, carry)) == 0
        return grads, loss, carry, jnp.where(finite, 0.0, jnp.nan)

    return grad


def not_finite(tree: Any) -> jax.Array:
    """Counts the numbers of a tree that are not finite.

    Args:
        tree: A pytree of arrays.

    Returns:
        How many there are.

    Example:
        >>> int(not_finite({"a": jnp.array([1.0, jnp.nan]), "b": jnp.int32(3)}))
        1
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    floats = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    counts = [jnp.sum(~jnp.isfinite(leaf), dtype=jnp.int32) for leaf in floats]
    return sum(counts, start=jnp.int32(0))


def accumulated(grad_fn: GradFn, parts: int) -> GradFn:
    """Takes means of gradient and loss over the parts of a batch, one at a time.

    Args:
        grad_fn: What `scaled_grad` gives.
        parts: How many parts there are, on the first axis of carry and batch.

    Returns:
        The same for all parts.
    """

    def grad(carry, batch, key):
        for leaf in jax.tree.leaves((batch, carry)):
            if leaf.shape[:1] != (parts,):
                raise ValueError(
                    f"batch: got a leaf of shape {leaf.shape}, want [{parts}, ...]: "
                    f"accumulate={parts} parts of batch and carry on the first axis"
                )

        def add(total, part):
            carry, batch, number = part
            grads, loss, carry, finite = grad_fn(
                carry, batch, jax.random.fold_in(key, number)
            )
            return jax.tree.map(jnp.add, total, (grads, loss, finite)), carry

        parts_xs = (carry, batch, jnp.arange(parts))
        first = jax.tree.map(lambda a: a[0], parts_xs)
        shapes = jax.eval_shape(grad_fn, *first[:2], key)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        total, carry = jax.lax.scan(add, (*zeros[:2], zeros[3]), parts_xs)
        grads, loss, finite = total
        grads, loss = jax.tree.map(lambda a: a / parts, (grads, loss))
        return grads, loss, carry, finite

    return grad
