"""Probes of a language model, and pictures of them."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from scanrnn._files import replacing
from scanrnn.training._batches import Window
from scanrnn.training._health import Health, probe
from scanrnn.training._model import LanguageModel, layers_of, zero_carry
from scanrnn.training._objective import token_losses


def probe_model(model: LanguageModel, batch: Window) -> list[Health]:
    """Probes the layers of a language model on a batch.

    Args:
        model: The model.
        batch: Inputs and targets, ids `[T, B]`.

    Returns:
        One `Health` for each layer. The loss is the mean cross-entropy in nats.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Config, Window, make_model, probe_model
        >>> ids = np.zeros([5, 2], np.int32)
        >>> model = make_model(Config(features=8, layers=1), symbols=30)
        >>> health, = probe_model(model, Window(ids, ids))
        >>> health.grad_norms.shape
        (5,)
    """
    carries = zero_carry(model, batch.inputs.shape[-1])
    carries = [carries] if model.rnn.num_layers == 1 else list(carries)
    layers = layers_of(model)
    steps = [functools.partial(cell.step, weights) for cell, weights in layers]
    params = [weights for _, weights in layers]
    gates = [getattr(cell, "gates", ()) for ((cell, _),) in model.rnn.stack]

    def loss(ys):
        return token_losses(model.read(ys), batch.targets).mean()

    return probe(steps, carries, model.embed(batch.inputs), loss, params, gates)


def health_row(layers: Sequence[Health]) -> dict[str, float]:
    """Summarises probes as numbers for a row of the log.

    Args:
        layers: The probes of all layers, as `probe` returns them.

    Returns:
        Four numbers for each layer, by name: the largest share of saturated values of
        an activation, the norm of the gradient at the first and at the last time step,
        and the largest spectral radius, or 0 if none is known.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Health, health_row
        >>> norms, share = np.array([0.25, 1.0]), np.array([[0.5], [0.0]])
        >>> health_row([Health(("tanh 1",), share, share, norms, np.array([0.9]))])
        {'saturated_1': 0.5, 'grad_first_1': 0.25, 'grad_last_1': 1.0, 'radius_1': 0.9}
    """
    row = {}
    for number, health in enumerate(layers, start=1):
        row[f"saturated_{number}"] = float(health.saturated.max(initial=0.0))
        row[f"grad_first_{number}"] = float(health.grad_norms[0])
        row[f"grad_last_{number}"] = float(health.grad_norms[-1])
        row[f"radius_{number}"] = float(health.radii.max(initial=0.0))
    return row


def draw_health(path: str | Path, layers: Sequence[Health]) -> bool:
    """Draws probes: gradients through time, saturation, and spectral radii.

    Args:
        path: The PNG file to write.
        layers: The probes of all layers, as `probe` returns them.

    Returns:
        True if the picture was drawn; False if matplotlib is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from scanrnn.training import Health, draw_health
        >>> norms, share = np.array([0.25, 1.0]), np.array([[0.5], [0.0]])
        >>> health = Health(("tanh 1",), share, share, norms, np.array([0.9]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "health.png"
        ...     draw_health(path, [health]) == path.exists()
        True
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    through_time, saturation, radii = figure.subplots(1, 3)
    width = 0.8 / len(layers)
    functions = _in_order(name for health in layers for name in health.names)
    gates = _in_order(gate for health in layers for gate in _gates(health))
    for number, health in enumerate(layers):
        label, color = f"layer {number + 1}", f"C{number}"
        norms = np.maximum(health.grad_norms, np.finfo(np.float64).tiny)
        through_time.semilogy(norms, color=color, label=label)
        # The bars of all layers are side by side, centred on the tick.
        aside = (number - (len(layers) - 1) / 2) * width
        at = np.array([functions.index(name) + aside for name in health.names])
        low, high = health.low.mean(axis=0), health.high.mean(axis=0)
        saturation.bar(at, low, width, color=color, alpha=0.5)
        saturation.bar(at, high, width, bottom=low, color=color)
        at = [gates.index(gate) + aside for gate in _gates(health)]
        radii.plot(at, health.radii, "o", color=color)
    through_time.set(xlabel="time step", ylabel="norm of the gradient by the carry")
    through_time.legend()
    saturation.set_xticks(
        range(len(functions)), functions, rotation=45, ha="right", fontsize=8
    )
    # A bar may be as high as 1; the frame is a little higher.
    saturation.set(ylabel="saturated: low (pale) and high", ylim=(0, 1.05))
    radii.axhline(1.0, color="0.6", linewidth=0.8)
    radii.set_xticks(range(len(gates)), gates)
    radii.set(xlabel="gate", ylabel="spectral radius")
    radii.set_ylim(bottom=0)
    with replacing(Path(path)) as partial:
        figure.savefig(partial, dpi=120, format="png")
    return True


def _gates(health: Health) -> Sequence[str]:
    """Returns the gate of every radius, or its number if the gates have no names."""
    return health.gates or [str(number) for number in range(len(health.radii))]


def _in_order(names: Iterable[str]) -> list[str]:
    """Returns every name once, in the order of first use."""
    return list(dict.fromkeys(names))
