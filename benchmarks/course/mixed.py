"""Mixed precision as the course page trains with it, ours beside torch.

An LSTM of two layers, Adam, mean squared error, operands in bfloat16, and a loss that
is scaled so that gradients do not vanish in half precision.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from flax.training.dynamic_scale import DynamicScale

import scanrnn
from benchmarks.contenders.torch import lacks_half
from benchmarks.course import _turns
from benchmarks.measure import mark
from benchmarks.tables import table
from scanrnn.interop import Weights, to_torch

TITLE = "Mixed precision"
ABOUT = """\
`LSTM({D}, {H}, num_layers=2)`, x of shape ({B}, {T}, {D}), mean squared error, Adam,
loss scaling (Flax's `DynamicScale`, torch's `GradScaler`). In torch bfloat16 is
`torch.autocast`, in scanrnn `dtype=jnp.bfloat16`; parameters are float32. The loss is
that of step {steps}, from the same weights; torch's second bias, which we do not have,
is not trained. bfloat16 is faster only on a processor that has instructions for it: the
line on the machine says which there are."""
SIZES = {"B": 32, "T": 100, "D": 256, "H": 512}
QUICK = {"B": 2, "T": 3, "D": 4, "H": 5}
STEPS = 30
DTYPES = ("float32", "bfloat16")
RATE = 1e-3


class Ours:
    """Our layer's training step."""

    def __init__(self, layer, dtype, xs, target):
        params = nnx.state(layer)
        self._graph = nnx.graphdef(_in_dtype(layer, dtype))
        self._data = jnp.asarray(xs), jnp.asarray(target)
        self._adam = optax.adam(RATE)
        # Copies: the state is donated, and both dtypes start from the same weights.
        params = jax.tree.map(lambda a: jnp.array(a, copy=True), params)
        self._state = params, self._adam.init(params), DynamicScale()
        self._step = jax.jit(self._train, donate_argnums=0)

    def _outputs(self, params, xs):
        return nnx.merge(self._graph, params)(xs)

    def _train(self, state, xs, target):
        params, adam, scale = state

        def loss_fn(params):
            error = self._outputs(params, xs).astype(jnp.float32) - target
            return jnp.mean(error * error)

        scale, finite, loss, grads = scale.value_and_grad(loss_fn)(params)
        updates, taken = self._adam.update(grads, adam)
        new = optax.apply_updates(params, updates), taken
        # A step whose gradient overflowed is left out.
        keep = functools.partial(jnp.where, finite)
        params, adam = jax.tree.map(keep, new, (params, adam))
        return (params, adam, scale), loss

    def train(self):
        self._state, loss = self._step(self._state, *self._data)
        return float(loss)

    def output_dtype(self):
        return str(jax.eval_shape(self._outputs, self._state[0], self._data[0]).dtype)


class Torch:
    """torch's training step, as the course page writes it."""

    def __init__(self, layer, dtype, xs, target):
        D, H = layer.in_features, layer.hidden_features
        self._layer = torch.nn.LSTM(D, H, num_layers=2, batch_first=True)
        weights = to_torch(Weights.of(layer)).items()
        self._layer.load_state_dict(
            {k: torch.tensor(np.asarray(v)) for k, v in weights}
        )
        self._data = torch.from_numpy(xs), torch.from_numpy(target)
        # With both biases moving, their sum would move twice as far as our one.
        trained = []
        for name, weight in self._layer.named_parameters():
            weight.requires_grad_(not name.startswith("bias_hh"))
            trained += [weight] * weight.requires_grad
        self._adam = torch.optim.Adam(trained, RATE, foreach=True)
        self._scaler = torch.amp.GradScaler("cpu")
        self._dtype = dtype

    def _outputs(self):
        half = self._dtype == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return self._layer(self._data[0])[0]

    def train(self):
        self._adam.zero_grad(set_to_none=True)
        ys = self._outputs().float()
        loss = torch.nn.functional.mse_loss(ys, self._data[1])
        self._scaler.scale(loss).backward()
        self._scaler.step(self._adam)
        self._scaler.update()
        return float(loss.detach())

    def output_dtype(self):
        return str(self._outputs().dtype).removeprefix("torch.")


def _in_dtype(layer, dtype):
    """A layer of the same sizes that multiplies in `dtype`."""
    return scanrnn.nnx.LSTM(
        layer.in_features,
        layer.hidden_features,
        num_layers=2,
        dtype=jnp.dtype(dtype),
        rngs=nnx.Rngs(0),
    )


def measure(quick: bool = False) -> dict:
    """Losses and times of both dtypes, ours and torch's.

    Raises:
      AssertionError: if a loss after some steps is not torch's in float32.
    """
    sizes = QUICK if quick else SIZES
    B, T, D, H = sizes.values()
    rng = np.random.default_rng(0)
    xs, target = (rng.standard_normal((B, T, n), np.float32) for n in (D, H))
    layer = scanrnn.nnx.LSTM(D, H, num_layers=2, rngs=nnx.Rngs(0))
    made = {
        f"{who}, {dtype}": make(layer, dtype, xs, target)
        for who, make in (("scanrnn", Ours), ("torch", Torch))
        for dtype in DTYPES
        if who == "scanrnn" or not lacks_half(dtype)
    }
    losses = {n: [one.train() for _ in range(STEPS)][-1] for n, one in made.items()}
    for name, loss in losses.items():
        bound = 1e-3 if "float32" in name else 2e-2
        np.testing.assert_allclose(loss, losses["torch, float32"], bound, err_msg=name)
    absent = {f"torch, {d}": reason for d in DTYPES if (reason := lacks_half(d))}
    dtypes = {name: one.output_dtype() for name, one in made.items()}
    row = _turns.turns({name: one.train for name, one in made.items()}, quick)
    found = {"sizes": sizes, "losses": losses, "outputs": dtypes, "absent": absent}
    return row | found


def report(found: dict) -> list[str]:
    """The part of the page, in Markdown."""
    lines = [
        [
            name + mark(found),
            found["outputs"][name],
            _turns.milliseconds(found, name),
            _turns.ratio(found, name, f"{name.split(',')[0]}, float32"),
            _against_torch(found, name),
            f"{loss:.4f}",
        ]
        for name, loss in found["losses"].items()
    ]
    heads = ("contender", "outputs", "ms a step", "/ its float32", "/ torch's", "loss")
    empty = [""] * (len(heads) - 2)
    lines += [[name, reason, *empty] for name, reason in found["absent"].items()]
    return [ABOUT.format(steps=STEPS, **found["sizes"]), table(heads, lines)]


def _against_torch(found, name):
    theirs = f"torch, {name.split(', ')[1]}"
    return _turns.ratio(found, name, theirs) if theirs in found["times"] else "-"
