"""Gradients of scaled losses, of a whole batch or of one part after another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

GradFn = Callable[[Any, Any, jax.Array], tuple[Any, jax.Array, Any, jax.Array]]


def rescale(loss_scale: DynamicScale | None, finite: jax.Array) -> DynamicScale | None:
    """Computes the loss scale of the next training step.

    The rule is that of Flax's `DynamicScale.value_and_grad`. That method differentiates
    one loss and checks only its gradient. A training step that adds up the gradients of
    several parts, and also checks the update, needs the rule alone.

    Args:
        loss_scale: The loss scale of this step; None stays None.
        finite: Whether everything in this step was finite, a boolean scalar.

    Returns:
        The loss scale of the next step. After a step that was not finite, the scale is
        multiplied by `backoff_factor`. After more than `growth_interval` finite steps
        in a row, it is multiplied by `growth_factor`.

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


def _checked(result: Any) -> Any:
    """Raises TypeError unless a loss function has returned a pair with a pair in it."""
    found = result
    for _ in range(2):
        if not isinstance(found, tuple | list) or len(found) != 2:
            shown = jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), result)
            raise TypeError(
                f"loss_fn: returned {shown} (arrays as their shapes), want (loss, "
                "(carry, outputs)): the loss, the carry for the next step, and what "
                "else must be finite; without these return (loss, (carry, ()))"
            )
        found = found[1]
    return result


def _check_carry(last: Any, carry: Any) -> None:
    """Raises TypeError unless the next carry can take the place of the given one."""
    found = [
        (jax.tree.structure(c), [*map(jnp.shape, jax.tree.leaves(c))])
        for c in (last, carry)
    ]
    if found[0] != found[1]:
        last, carry = (jax.tree.map(jnp.shape, c) for c in (last, carry))
        raise TypeError(
            f"loss_fn: returned the carry {last} (arrays as their shapes), want "
            f"{carry}, as it was given; the first one is init_state(carry=...)"
        )


def scaled_grad(loss_fn: Callable, params: Any, scale: jax.Array) -> GradFn:
    """Makes the function that computes the gradient of a batch, or of a part of it.

    Args:
        loss_fn: The loss function, as in `make_train_step`.
        params: The parameters.
        scale: The loss is multiplied by this number, and its gradient is divided by it.

    Returns:
        A function of carry, batch and key. It returns the unscaled gradient, the
        unscaled loss, the next carry, and a number: 0 if outputs and carry are finite,
        else NaN. It raises a TypeError if the loss has axes or a half-precision dtype,
        or the next carry another structure or other shapes.
    """

    def scaled_loss(params, carry, batch, key):
        loss, (carry, outputs) = _checked(loss_fn(params, carry, batch, key))
        if shape := jnp.shape(loss):
            raise TypeError(
                f"loss_fn: returned a loss of shape {shape}, want one number, such as "
                "its mean"
            )
        if jnp.finfo(loss.dtype).bits < 32:
            raise TypeError(
                f"loss_fn: got a loss of {loss.dtype}, want float32: a half type "
                "overflows when it is scaled; cast the model's outputs before the loss"
            )
        return loss * scale.astype(loss.dtype), (loss, carry, outputs)

    def grad(carry, batch, key):
        grad_fn = jax.grad(scaled_loss, has_aux=True)
        grads, (loss, last, outputs) = grad_fn(params, carry, batch, key)
        _check_carry(last, carry)
        grads = jax.tree.map(lambda g: g / scale.astype(g.dtype), grads)
        finite = not_finite((outputs, last)) == 0
        return grads, loss, last, jnp.where(finite, 0.0, jnp.nan)

    return grad


def not_finite(tree: Any) -> jax.Array:
    """Counts the numbers in a tree that are not finite: NaN or infinite.

    Args:
        tree: A pytree of arrays.

    Returns:
        How many there are, an int32 scalar.

    Example:
        >>> int(not_finite({"a": jnp.array([1.0, jnp.nan]), "b": jnp.int32(3)}))
        1
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    floats = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    counts = [jnp.sum(~jnp.isfinite(leaf), dtype=jnp.int32) for leaf in floats]
    return sum(counts, start=jnp.int32(0))


def accumulated(grad_fn: GradFn, parts: int) -> GradFn:
    """Makes a function that runs `grad_fn` on the parts of a batch, one after another.

    Args:
        grad_fn: A function that `scaled_grad` returns.
        parts: Number of parts. It is the size of the first axis of carry and batch.

    Returns:
        A function like `grad_fn`. Its gradient and loss are means over the parts. Its
        carry has the parts on the first axis. It raises a ValueError if the first axis
        of a leaf of carry or batch has another size.
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
