"""One training step and the evaluation, as pure jitted functions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from scanrnn.training._config import Config
from scanrnn.training._data import Streams
from scanrnn.training._model import CharLM, zero_carry

BITS = 1.0 / math.log(2.0)  # in a nat


class TrainState(NamedTuple):
    """Everything on the device that a training step changes or needs.

    Attributes:
        params: The parameters, float32.
        opt_state: State of the optimizer, its step count included.
        carry: The carry of every stream, kept across windows.
        key: PRNG key of the run.
    """

    params: Any
    opt_state: Any
    carry: Any
    key: jax.Array


TrainStep = Callable[[TrainState, np.ndarray, np.ndarray], tuple[TrainState, jax.Array]]


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Makes AdamW with a clipped gradient, a warm-up and a cosine decay.

    Args:
        config: Options of the run.

    Returns:
        The optimizer.

    Example:
        >>> from scanrnn.training import Config
        >>> sorted(make_optimizer(Config())._fields)
        ['init', 'update']
    """
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=max(1, min(50, config.steps // 10)),
        decay_steps=max(2, config.steps),
        end_value=config.learning_rate / 50,
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(schedule, b2=0.99, weight_decay=0.01),
    )


def init_state(config: Config, model: CharLM) -> TrainState:
    """Makes the state with which training starts.

    Args:
        config: Options of the run.
        model: The model with its initial parameters.

    Returns:
        The state before the first step.

    Example:
        >>> from scanrnn.training import Config, init_state, make_model
        >>> config = Config(features=8, batch=3)
        >>> init_state(config, make_model(config, symbols=30)).carry[0].h.shape
        (3, 8)
    """
    params = nnx.state(model)
    return TrainState(
        # A copy: the step gives its argument's memory away, the model keeps its own.
        params=jax.tree.map(jnp.copy, params),
        opt_state=make_optimizer(config).init(params),
        carry=zero_carry(model, config.batch),
        key=jax.random.key(config.seed),
    )


def make_train_step(config: Config, model: CharLM) -> TrainStep:
    """Makes the jitted training step: truncated backpropagation through one window.

    Args:
        config: Options of the run.
        model: The model; only its form is used.

    Returns:
        A function of a state, which it consumes, and inputs and targets of shape
        `[T, B]`. It returns the next state and the mean loss in bits per character.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Config, init_state, make_model, make_train_step
        >>> config = Config(features=8, batch=2)
        >>> model = make_model(config, symbols=30)
        >>> ids = np.zeros([4, 2], np.int32)
        >>> step = make_train_step(config, model)
        >>> state, loss = step(init_state(config, model), ids, ids)
        >>> loss.shape
        ()
    """
    optimizer, loss_fn = make_optimizer(config), _make_loss(model)

    def step(state, inputs, targets):
        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, carry), grads = grad_fn(state.params, state.carry, inputs, targets)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, carry, state.key), loss * BITS

    return jax.jit(step, donate_argnums=0)


def make_evaluate(model: CharLM, streams: Streams) -> Callable[[Any], float]:
    """Makes the evaluation: bits per character over a whole text, read once.

    Each stream starts from a zero carry. At most a window per stream is left unread.

    Args:
        model: The model; only its form is used.
        streams: The text.

    Returns:
        A function of parameters, which returns the bits per character.

    Example:
        >>> import numpy as np
        >>> from flax import nnx
        >>> from scanrnn.training import Config, Streams, make_evaluate, make_model
        >>> model = make_model(Config(features=8), symbols=4)
        >>> streams = Streams(np.zeros(100, np.int32), batch=2, window=7)
        >>> make_evaluate(model, streams)(nnx.state(model)) > 0
        True
    """
    loss_fn = jax.jit(_make_loss(model))
    windows = (len(streams.ids) // streams.batch - 1) // streams.window

    def evaluate(params):
        carry, losses = zero_carry(model, streams.batch), []
        for number in range(windows):
            window = streams.at(number * streams.window)
            loss, carry = loss_fn(params, carry, *window)
            losses.append(loss)
        return float(np.mean(losses)) * BITS

    return evaluate


def _make_loss(model: CharLM):
    """Makes the mean cross-entropy in nats, with the last carry."""
    graphdef = nnx.graphdef(model)

    def loss_fn(params, carry, inputs, targets):
        carry, logits = nnx.merge(graphdef, params)(inputs, carry)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return jnp.mean(losses), carry

    return loss_fn
