"""The loss, the evaluation and the optimizer of a language model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from scanrnn.training._batches import Window
from scanrnn.training._config import Config
from scanrnn.training._model import LanguageModel
from scanrnn.training._step import LossFn, TrainState

# So many steps that the learning rate does not fall before `set_steps` is called.
_ENDLESS = 2**31


def make_loss(model: LanguageModel, loss: str = "mean") -> LossFn:
    """Makes the loss function of a language model: the cross-entropy, in nats.

    Args:
        model: The model. Only its structure is used, not its parameters.
        loss: "mean" over all tokens, or "sum" over time and mean over the batch.

    Returns:
        A loss function for `make_train_step`. A batch is a `Window` or `Padded`. A
        `Window` continues from the given carry. The sentences of a `Padded` batch start
        from the model's first carry, and padding does not count.

    Example:
        >>> import jax, numpy as np
        >>> from flax import nnx
        >>> from scanrnn.training import Config, Padded, make_loss, make_model
        >>> model = make_model(Config(features=8), symbols=4)
        >>> batch = Padded(np.zeros([5, 2], np.int32), np.array([5, 3]))
        >>> loss, _ = make_loss(model)(nnx.state(model), (), batch, jax.random.key(0))
        >>> loss.shape
        ()
    """
    graphdef = nnx.graphdef(model)

    def loss_fn(params, carry, batch, key):
        model = nnx.merge(graphdef, params)
        if isinstance(batch, Window):
            last, logits = model(batch.inputs, carry, resets=batch.resets, key=key)
            losses, count = token_losses(logits, batch.targets), batch.inputs.size
        else:
            lengths = jnp.maximum(batch.lengths - 1, 0)
            last, logits = model(batch.ids[:-1], seq_lengths=lengths, key=key)
            steps = jnp.arange(len(batch.ids) - 1)[:, None]
            losses = token_losses(logits, batch.ids[1:])
            losses = jnp.where(steps < lengths, losses, 0.0)
            last, count = carry, jnp.maximum(jnp.sum(lengths), 1)
        if loss == "sum":
            count = losses.shape[1]
        return jnp.sum(losses) / count, (last, logits)

    return loss_fn


def token_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Computes the cross-entropy of every token, in nats.

    Args:
        logits: Logits `[T, B, V]`.
        targets: Ids `[T, B]`.

    Returns:
        Cross-entropies `[T, B]`, float32 or wider.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def make_optimizer(
    config: Config, epoch: int | None = None
) -> optax.GradientTransformation:
    """Makes the optimizer of a config.

    Args:
        config: Options of the run.
        epoch: Steps in an epoch; None if it is not known.

    Returns:
        AdamW with a warm-up and a cosine decay, which ends at the step that `set_steps`
        sets; before that, after `config.steps` or `config.epochs`. If neither is given
        or `epoch` is not known, the learning rate stays at its peak after the warm-up.
        Or SGD: its learning rate is multiplied by `decay` at the start of every epoch
        after the first `decay_after` epochs. If `epoch` is not known, it stays.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from scanrnn.training import Config, make_optimizer
        >>> sorted(make_optimizer(Config())._fields)
        ['init', 'update']
    """
    if config.optimizer == "sgd":

        def decayed(count):
            ended = 0 if epoch is None else count // epoch
            late = jnp.maximum(ended + 1 - config.decay_after, 0)
            return config.learning_rate * config.decay**late

        return optax.sgd(decayed)

    def adamw(steps):
        def cosine(count):
            warm = jnp.maximum(1.0, jnp.minimum(50.0, steps // 10))
            done = jnp.clip((count - warm) / jnp.maximum(steps - warm, 1.0), 0, 1)
            last = config.learning_rate / 50
            fall = 0.5 * (1 + jnp.cos(jnp.pi * done)) * (config.learning_rate - last)
            rise = config.learning_rate * (count + 1) / warm
            return jnp.minimum(rise, last + fall)

        return optax.adamw(cosine, b2=0.99, weight_decay=0.01)

    # The number of steps is part of the state. It is known only after some steps have
    # been timed, and setting it must not compile the training step again.
    steps = config.steps or config.epochs * (epoch or 0) or _ENDLESS
    return optax.inject_hyperparams(adamw)(steps=float(steps))


def set_steps(state: TrainState, steps: int) -> TrainState:
    """Sets the step at which the schedule of "adamw" ends.

    Args:
        state: A state with an optimizer of `make_optimizer`.
        steps: Steps of the whole run.

    Returns:
        The state with this number of steps. A state of "sgd" is returned unchanged.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from scanrnn.training import Config, init_state, make_optimizer, set_steps
        >>> optimizer = make_optimizer(Config())
        >>> state = init_state({"w": jnp.ones(1)}, optimizer, key=jax.random.key(0))
        >>> float(set_steps(state, 70).opt_state.hyperparams["steps"])
        70.0
    """
    opt_state: Any = state.opt_state
    if not hasattr(opt_state, "hyperparams"):
        return state
    old = opt_state.hyperparams["steps"]
    new = jnp.full_like(old, steps)  # same dtype and device: no compilation
    return state._replace(opt_state=opt_state._replace(hyperparams={"steps": new}))


def make_evaluate(
    model: LanguageModel, batches: Callable[[], Any], carry: Any
) -> Callable[[Any], float]:
    """Makes the evaluation: the mean loss over a whole text, read once.

    Args:
        model: The model. Only its structure is used, not its parameters.
        batches: A function that returns the batches of the text, from its start. All
            are `Window`s, or all are `Padded`.
        carry: The carry before the first batch; `()` for `Padded`.

    Returns:
        A function of the parameters. It returns the mean loss in nats per token.

    Raises:
        ValueError: When called, if there are no batches.

    Example:
        >>> import numpy as np
        >>> from scanrnn import training
        >>> config = training.Config(features=8, batch=2)
        >>> model = training.make_model(config, symbols=4)
        >>> state, _ = training.make_training(config, model)
        >>> streams = training.Streams(np.zeros(100, np.int32), batch=2, window=7)
        >>> batches = lambda: [next(streams) for _ in range(7)]
        >>> evaluate = training.make_evaluate(model, batches, state.carry)
        >>> evaluate(state.params) > 0
        True
    """
    loss_fn: Any = make_loss(model)

    @jax.jit
    def measure(params, carry, batch):
        loss, (carry, _) = loss_fn(params, carry, batch, None)
        if isinstance(batch, Window):
            return carry, (loss, batch.inputs.size)
        return carry, (loss, jnp.sum(jnp.maximum(batch.lengths - 1, 0)))

    def evaluate(params):
        last, means = carry, []
        for batch in batches():
            last, mean = measure(params, last, batch)
            means.append(mean)
        if not means:
            raise ValueError(
                "batches: returned none, want those of the whole text; return a new "
                "iterator at every call"
            )
        # Read at the end, so that no batch waits. A sum in float32 would drift.
        losses, counts = np.array(jax.device_get(means), np.float64).T
        return float(losses @ counts / counts.sum())

    return evaluate
