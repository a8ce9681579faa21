"""The guarded training step: it keeps NaN and new infinities out of the state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.training.dynamic_scale import DynamicScale

from scanrnn.training import _step_checks
from scanrnn.training._gradients import accumulated, not_finite, rescale, scaled_grad

# What was not finite in a step. `Metrics.fault` is the index of the first that applies.
FAULTS = ("none", "forward", "loss", "gradient", "update", "optimizer state")


class Counts(NamedTuple):
    """How many steps were taken, and how many of them were skipped or clipped.

    Attributes:
        steps: All steps, including skipped steps.
        skipped: Steps that were skipped, because something was not finite.
        in_row: How many steps in a row were skipped, up to the last step.
        clipped: Steps whose gradient was clipped, without skipped steps.
    """

    steps: jax.Array
    skipped: jax.Array
    in_row: jax.Array
    clipped: jax.Array


class TrainState(NamedTuple):
    """Everything on the device that a training step changes or needs.

    Attributes:
        params: The parameters, float32 or wider.
        opt_state: State of the optimizer.
        carry: What one training step passes to the next but does not train, such as
            the carry of every stream, or running statistics.
        key: PRNG key of the run. Each step folds its number into this key.
        loss_scale: Flax's `DynamicScale`; None for no scaling of the loss.
        counts: How many steps were taken, skipped and clipped.
    """

    params: Any
    opt_state: Any
    carry: Any
    key: jax.Array
    loss_scale: DynamicScale | None
    counts: Counts


class Metrics(NamedTuple):
    """The numbers of a step: scalars that stay on the device until they are read.

    Attributes:
        loss: The loss, in the units of the loss function.
        grad_norm: Global norm of the gradient, unscaled, before clipping.
        clip_fraction: Share of steps with a clipped gradient, among those not skipped.
        loss_scale: The factor of the loss; 1 without scaling.
        skipped: Whether the step was skipped.
        in_row: How many steps in a row were skipped, including this one.
        fault: What was not finite, an index into `FAULTS`.
    """

    loss: jax.Array
    grad_norm: jax.Array
    clip_fraction: jax.Array
    loss_scale: jax.Array
    skipped: jax.Array
    in_row: jax.Array
    fault: jax.Array


LossFn = Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, tuple[Any, Any]]]
TrainStep = Callable[[TrainState, Any], tuple[TrainState, Metrics]]


def init_state(
    params: Any,
    optimizer: optax.GradientTransformation,
    *,
    carry: Any = (),
    key: jax.Array,
    loss_scale: DynamicScale | None = None,
) -> TrainState:
    """Makes the state that training starts from.

    Args:
        params: The initial parameters, any pytree: `nnx.state(model, nnx.Param)`, or
            the "params" of a Linen module. A training step reuses memory, so they are
            copied; as everywhere in JAX, float64 of NumPy is float32 without x64.
        optimizer: The optimizer.
        carry: The carry of the loss function for the first step.
        key: PRNG key of the run.
        loss_scale: Flax's `DynamicScale` for float16; None for no scaling.

    Returns:
        The state before the first step.

    Raises:
        TypeError: If a parameter has a half-precision dtype, or none of floating point,
            or `optimizer`, `key` or `loss_scale` has another type.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from scanrnn.training import init_state
        >>> params = {"w": jnp.zeros(3)}
        >>> state = init_state(params, optax.adam(1e-3), key=jax.random.key(0))
        >>> int(state.counts.steps)
        0
    """
    _step_checks.check_start(params, optimizer, key, loss_scale)
    if loss_scale is not None:
        # With Python numbers here, the second step would be traced again, with arrays.
        loss_scale = loss_scale.replace(
            scale=jnp.float32(loss_scale.scale), fin_steps=jnp.int32(0)
        )
    params = jax.tree.map(jnp.copy, params)
    return TrainState(
        params=params,
        # Copies: some optimizers keep the parameters, and a step reuses all memory.
        opt_state=jax.tree.map(jnp.copy, optimizer.init(params)),
        carry=jax.tree.map(jnp.copy, carry),
        key=jnp.copy(key),
        loss_scale=loss_scale,
        counts=Counts(*(jnp.zeros([], jnp.int32) for _ in Counts._fields)),
    )


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    clip: float | None = None,
    accumulate: int = 1,
    shardings: Any = None,
) -> TrainStep:
    r"""Makes the jitted, guarded training step.

    The step scales the loss and computes its gradient. Then it unscales, checks and
    clips the gradient :math:`g`,

    .. math:: g \leftarrow g \min(1, \mathrm{clip} / \|g\|_2),

    and the optimizer updates the parameters. The step is skipped if a number in the
    outputs, the loss, the gradient or the new state is not finite. Then parameters,
    optimizer state and carry keep every bit, the loss scale falls, and the metrics name
    the fault. A gradient whose squares overflow counts as not finite. Infinities in the
    first state of the optimizer are allowed.

    The step does not wait for the device: the metrics are arrays, to be read later.

    Args:
        loss_fn: A function `loss_fn(params, carry, batch, key)`. It returns `(loss,
            (carry, outputs))`: the loss, a scalar in float32 or wider; the carry for
            the next step; and what else must be finite, such as logits, or `()`.
        optimizer: The optimizer. It gets the clipped gradient.
        clip: Largest global norm of a gradient; None for no clipping.
        accumulate: Number of parts of a batch. With more than one, this is the size of
            the first axis of all leaves of the batch and the carry. The parts run one
            after another, and gradient and loss are means over them.
        shardings: Shardings that the state keeps, as `jax.tree.map(lambda a:
            a.sharding, state)` returns them. None leaves them to JAX.

    Returns:
        A function of a state, whose memory it reuses, and a batch. It returns the next
        state and the `Metrics`.

    Raises:
        ValueError: If `clip` or `accumulate` is not positive. When first called, if a
            leaf of batch or carry has another number of parts, or the state is that of
            another optimizer.
        TypeError: If `loss_fn` is no function, or `optimizer` none of optax. When first
            called, if the state is no `TrainState`, the loss has axes or a
            half-precision dtype, or `loss_fn` returns something else, such as a carry
            of other shapes.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from flax import nnx
        >>> import scanrnn
        >>> from scanrnn.training import init_state, make_train_step
        >>> rnn = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> graphdef, params = nnx.split(rnn)
        >>> def loss_fn(params, carry, batch, key):
        ...     ys = nnx.merge(graphdef, params)(batch)
        ...     return jnp.mean(ys**2), (carry, ys)
        >>> optimizer = optax.adam(1e-3)
        >>> step = make_train_step(loss_fn, optimizer, clip=1.0)
        >>> state = init_state(params, optimizer, key=jax.random.key(0))
        >>> state, metrics = step(state, jnp.ones([2, 7, 3]))
        >>> state, metrics = step(state, jnp.full([2, 7, 3], jnp.nan))
        >>> bool(metrics.skipped), int(state.counts.skipped), int(state.counts.steps)
        (True, 1, 2)

    Reference:
        Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural
        networks", 2013, arXiv:1211.5063.
    """
    _step_checks.check_options(loss_fn, optimizer, clip, accumulate)
    update = optax.with_extra_args_support(optimizer).update

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        check_state(state)
        first = _step_checks.first_opt_state(optimizer, state)
        scaling = state.loss_scale
        scale = jnp.asarray(1.0 if scaling is None else scaling.scale, jnp.float32)
        key = jax.random.fold_in(state.key, state.counts.steps)
        grad_fn = scaled_grad(loss_fn, state.params, scale)
        if accumulate > 1:
            grad_fn = accumulated(grad_fn, accumulate)
        grads, loss, carry, outputs_finite = grad_fn(state.carry, batch, key)
        # The check is of squares, because optimizers sum these too. XLA turns the norm
        # of a single number into its absolute value, which hides an overflow.
        squares = optax.tree.norm(grads, squared=True)
        norm = jnp.sqrt(squares)
        clipped = norm > (jnp.inf if clip is None else clip)
        if clip is not None:
            factor = jnp.where(clipped, clip / norm, 1.0)
            grads = jax.tree.map(lambda g: g * factor, grads)
        seen = {"value": loss, "grad": grads}  # for `reduce_on_plateau`, say
        updates, opt_state = update(grads, state.opt_state, state.params, **seen)
        params = optax.apply_updates(state.params, updates)
        old = (state.params, state.opt_state, state.carry)
        # Dtypes stay, so that the next step is the same program.
        new = jax.tree.map(_as_type_of, (params, opt_state, carry), old)
        bad = _faults((outputs_finite, loss, squares), new, first)
        skipped = jnp.any(bad)

        params, opt_state, carry = jax.tree.map(
            lambda n, o: jnp.where(skipped, o, n), new, old
        )
        counts = _count(state.counts, skipped, clipped)
        new_state = TrainState(
            params=params,
            opt_state=opt_state,
            carry=carry,
            key=state.key,
            loss_scale=rescale(scaling, ~skipped),
            counts=counts,
        )
        metrics = _metrics(loss, norm, scale, bad, counts)
        return new_state, metrics

    out_shardings = None if shardings is None else (shardings, None)
    return jax.jit(step, donate_argnums=0, out_shardings=out_shardings)


def check_state(state: Any) -> None:
    """Raise TypeError unless the state of a training step is a `TrainState`."""
    if not isinstance(state, TrainState):
        raise TypeError(
            f"state: got a {type(state).__name__}, want what init_state(...) returns"
        )


def _as_type_of(new, old):
    new = jnp.asarray(new)
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def _faults(numbers, new, first):
    """Returns a boolean for each of `FAULTS[1:]`: whether it occurred."""
    params, opt_state, carry = new
    forward, loss, gradient = (~jnp.isfinite(number) for number in numbers)
    forward |= not_finite(carry) > 0
    update = not_finite(params) > 0
    return jnp.stack([forward, loss, gradient, update, _spoiled(opt_state, first)])


def _metrics(loss, norm, scale, bad, counts):
    skipped = jnp.any(bad)
    return Metrics(
        loss=loss,
        grad_norm=norm,
        clip_fraction=counts.clipped / jnp.maximum(counts.steps - counts.skipped, 1),
        loss_scale=scale,
        skipped=skipped,
        in_row=counts.in_row,
        fault=jnp.where(skipped, 1 + jnp.argmax(bad), 0).astype(jnp.int32),
    )


def _spoiled(opt_state, first):
    """Whether an array has more numbers that are not finite than its first value."""
    more = jax.tree.map(lambda n, f: not_finite(n) > not_finite(f), opt_state, first)
    return jnp.any(jnp.array(jax.tree.leaves(more)))


def _count(counts, skipped, clipped):
    skip = skipped.astype(jnp.int32)
    return Counts(
        steps=counts.steps + 1,
        skipped=counts.skipped + skip,
        in_row=(counts.in_row + 1) * skip,
        clipped=counts.clipped + (clipped & ~skipped),
    )
