"""Compare whole layers with torch and Keras: lengths, masks, directions, gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scanrnn import interop

T, B, D, H = 6, 4, 3, 4
LENGTHS = np.array([4, T, 1, 3])
COUNTS = np.arange(T) < LENGTHS[:, None]
close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-11)
TORCH = {
    "LSTM": {},
    "GRU": {},
    "RNN": {},
    "LSTM, projected": {"proj_size": 2},
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def torch_run(torch, layer, xs):
    """Outputs, last carries and gradients, for packed sequences in torch."""
    from torch.nn.utils import rnn as packing

    xs = torch.tensor(xs, requires_grad=True)
    packed = packing.pack_padded_sequence(
        xs, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    outs, last = layer(packed)
    ys, _ = packing.pad_packed_sequence(outs, batch_first=True)
    last = last if isinstance(last, tuple) else (last,)
    sum(torch.sum(torch.sin(a)) for a in (ys, *last)).backward()
    return [a.detach().numpy() for a in (ys, *last)], xs.grad.numpy()


def gradients_by_our_names(layer):
    """Torch's gradients: that of one bias is the gradient of the sum of both."""
    grads = {}
    for name, param in layer.named_parameters():
        grads[name] = param.grad.numpy().copy()
        if name.startswith("bias_hh"):
            keep = 2 * H if type(layer).__name__ == "GRU" else len(grads[name])
            grads[name][:keep] = 0
    return interop.from_torch(grads, nonlinearity=getattr(layer, "nonlinearity", None))


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH)
def test_packed_sequences_of_torch_equal_lengths(name):
    """There are two layers in both directions: values, carries and gradients."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    kind = getattr(torch.nn, name.partition(",")[0])
    options = dict(num_layers=2, bidirectional=True, batch_first=True)
    layer = kind(D, H, **options, **TORCH[name], dtype=torch.float64)
    xs = normal(B, T, D)
    (want, *want_last), want_by_xs = torch_run(torch, layer, xs)

    ours = interop.from_torch(layer).layer(return_carry=True, zero_padding=True)
    padded = jnp.where(COUNTS[..., None], xs, jnp.nan)

    def loss(rnn, xs):
        last, ys = rnn(xs, seq_lengths=LENGTHS)
        return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves((last, ys)))

    last, ys = ours(padded, seq_lengths=LENGTHS)
    close(ys, want)
    for k, field in enumerate(want_last):  # (h, c), layers and directions in one axis
        mine = [one[k] for pair in last for one in pair]
        close(jnp.stack(mine), field)
    by_rnn, by_xs = jax.grad(loss, argnums=(0, 1))(ours, padded)
    close(jnp.where(COUNTS[..., None], by_xs, 0), want_by_xs)
    for mine, theirs in zip(
        by_rnn.stack, gradients_by_our_names(layer).layers, strict=True
    ):
        for one, other in zip(mine, theirs, strict=True):
            jax.tree.map(close, one.params, dict(other))


# Keras's own tanh and sigmoid compute in float32.
near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
KERAS = {"LSTM": {}, "GRU": {}, "GRU, reset before": {"reset_after": False}}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Keras may warn on import
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("name", [*KERAS, "SimpleRNN"])
def test_masks_of_keras_equal_ours(name, go_backwards):
    """For any mask, a masked step keeps the carry. Its outputs are not compared."""
    keras = pytest.importorskip("keras")
    layer = getattr(keras.layers, name.partition(",")[0])(
        H,
        return_sequences=True,
        return_state=True,
        go_backwards=go_backwards,
        dtype="float64",
        **KERAS.get(name, {}),
    )
    xs = normal(B, T, D)
    mask = np.random.default_rng(1).random((B, T)) < 0.6
    mask[0] = True
    want, *want_last = layer(jnp.asarray(xs), mask=jnp.asarray(mask))
    weights = interop.from_keras(layer.get_weights(), activation="tanh")
    ours = weights.layer(return_carry=True, reverse=go_backwards)
    last, ys = ours(xs, mask=mask)
    shown = mask[:, ::-1] if go_backwards else mask
    near(ys[shown], np.asarray(want)[shown])
    for field, wanted in zip(last, want_last, strict=True):
        near(field, wanted)
