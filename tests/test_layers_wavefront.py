"""Compare equal layers side by side with the same layers one after the other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import cells, machines
from scanrnn.layers import Layer, _wavefront
from scanrnn.machines import MACHINES
from scanrnn.nnx import GRU, LSTM
from tests.jaxprs import gemms_in_loops, loops

T, B, H = 6, 3, 4
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)
LAYERS = {
    "lstm": functools.partial(LSTM, num_layers=3, norm="ba2016"),
    "gru-residual": functools.partial(GRU, num_layers=3, residual=True),
    "gru-gnmt": functools.partial(GRU, num_layers=4, residual="gnmt"),
}
CALLS = {
    "plain": {},
    "lengths": {"seq_lengths": np.array([T, 2, 0])},
    "resets": {"resets": np.arange(T) % np.array([[2], [3], [9]]) == 1},
    "segments": {
        "segment_ids": np.array([[1, 1, 2, 2, 2, 0], [5, 3, 3, 0, 7, 7], [1] * T])
    },
}


def make(name, wavefront):
    options = {"param_dtype": jnp.float64, "return_carry": True, "keep_order": True}
    return LAYERS[name](H, H, wavefront=wavefront, **options, rngs=nnx.Rngs(0))


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def run(rnn, xs, carry, call):
    def loss(rnn, xs, carry):
        out = rnn(xs, initial_carry=carry, **call)
        return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(out)), out

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(rnn, xs, carry)


@pytest.mark.parametrize(
    "name, call, reverse",
    [
        ("lstm", "lengths", True),
        ("gru-residual", "plain", False),
        *(
            pytest.param(name, call, reverse, marks=pytest.mark.slow)
            for name in LAYERS
            for call in CALLS
            for reverse in (False, True)
        ),
    ],
)
def test_layers_side_by_side_give_what_they_give_one_by_one(name, call, reverse):
    """Outputs, carries and all gradients agree; the first carry is not zero."""
    call = CALLS[call] | {"reverse": reverse}
    together, apart = make(name, True), make(name, False)
    xs = normal(B, T, H)
    leaves, tree = jax.tree.flatten(apart(xs)[0])
    drawn = [normal(*a.shape, seed=k) for k, a in enumerate(leaves)]
    carry = jax.tree.unflatten(tree, drawn)
    got, want = (run(rnn, xs, carry, call) for rnn in (together, apart))
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


def test_there_is_one_loop_for_all_layers():
    xs = normal(B, T, H)
    counts = {}
    for wavefront in (True, False):
        rnn = make("gru-residual", wavefront)
        jaxpr = jax.make_jaxpr(lambda xs, rnn=rnn: rnn(xs))(xs).jaxpr
        counts[wavefront] = [loop.params["length"] for loop in loops(jaxpr)]
        assert gemms_in_loops(jaxpr)
    assert counts == {True: [T + 2], False: [T] * 3}


@pytest.mark.parametrize(
    "kind, size, wanted",
    [("h100", 256, True), ("h100", 4096, False), ("cpu", 256, False)],
)
def test_it_pays_where_a_launch_costs_more_than_a_step(monkeypatch, kind, size, wanted):
    monkeypatch.setattr(machines, "machine_of", lambda _: MACHINES[kind])
    params = {"kernel": jax.ShapeDtypeStruct((size, 8 * size), jnp.float32)}
    xs = jax.ShapeDtypeStruct((128, 16 if size < 999 else 4096, size), jnp.float32)
    assert _wavefront.pays([[Layer(cells.lstm(), params)]] * 2, xs) is wanted


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_layers": 1}, "there is one layer"),
        ({"bidirectional": True}, "bidirectional"),
        ({"dropout": 0.5}, "noise"),
        ({"in_features": 2}, "differ in their cells or sizes"),
    ],
)
def test_layers_that_cannot_are_refused(options, words):
    options = {"in_features": H, "num_layers": 2} | options
    rnn = GRU(hidden_features=H, **options, wavefront=True, rngs=nnx.Rngs(0))
    xs = normal(B, T, options["in_features"])
    with pytest.raises(ValueError, match=f"wavefront=True, but .*{words}"):
        rnn(xs, rngs=nnx.Rngs(0))


@dataclasses.dataclass(frozen=True)
class Pooled(cells.Cell):
    """A cell whose parameters do not show the size of its inputs."""

    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        return {"w": jnp.full(hidden_features, 0.5, dtype)}

    def initial_carry(self, params, x, dtype=None):
        return jnp.zeros_like(x.mean(-1, keepdims=True) * params["w"], dtype=dtype)

    def step(self, params, carry, x):
        h = jnp.tanh(carry * params["w"] + x.mean(-1, keepdims=True))
        h = h.astype(carry.dtype)
        return h, h


def test_layers_whose_inputs_differ_do_not_run_side_by_side():
    layers = [
        scanrnn.nnx.RNN(
            Pooled(), 3, 5, num_layers=2, wavefront=wavefront, rngs=nnx.Rngs(0)
        )
        for wavefront in (True, None)
    ]
    with pytest.raises(ValueError, match="the layers differ in their cells or sizes"):
        layers[0](jnp.ones([2, 7, 3]))
    assert layers[1](jnp.ones([2, 7, 3])).shape == (2, 7, 5)


def test_wavefront_that_is_a_text_is_refused():
    with pytest.raises(TypeError, match="wavefront must be True or False, got 'no'"):
        GRU(3, 5, num_layers=2, wavefront="no", rngs=nnx.Rngs(0))


def test_wavefront_promotes_no_ranks():
    rnn = make("gru-residual", True)
    with jax.numpy_rank_promotion("raise"):
        _, ys = rnn(jnp.ones((2, 4, H)))
    assert ys.shape == (2, 4, H)
