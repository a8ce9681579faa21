"""Layers with random options over random sequences, compared with single steps."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn

# Some drawn layers have no place for a residual connection.
pytestmark = pytest.mark.filterwarnings("ignore:RNN. residual=")

D, H = 3, 3
CELLS = {"Elman": {}, "LSTM": {"norm": "ba2016"}, "GRU": {}, "QRNN": {}, "LRU": {}}
generated = functools.partial(
    hypothesis.settings, deadline=None, derandomize=True, database=None
)


@st.composite
def layers(draw):
    """A class of layers and its options."""
    name = draw(st.sampled_from(sorted(CELLS)))
    options = dict(
        num_layers=draw(st.integers(1, 3)),
        bidirectional=draw(st.booleans()),
        residual=draw(st.sampled_from([False, True, "gnmt"])),
        dtype=draw(st.sampled_from([None, jnp.bfloat16])),
        param_dtype=draw(st.sampled_from([jnp.float32, jnp.float64, jnp.bfloat16])),
        unroll=draw(st.sampled_from([1, 2, True])),
    )
    return name, CELLS[name] | options


@st.composite
def calls(draw, least=0):
    """The shape of a batch, a number of steps, and the arguments of a call."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    T = draw(st.integers(least, 5))
    time_major = draw(st.booleans())
    shape = (T, *batch) if time_major else (*batch, T)
    flags = ("reverse", "keep_order", "zero_padding", "return_all_carries")
    call = {name: draw(st.booleans()) for name in flags} | {"time_major": time_major}
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = {
        "seq_lengths": lambda: rng.integers(0, T + 1, batch),
        "mask": lambda: rng.random(shape) < 0.7,
        "segment_ids": lambda: rng.integers(0, 3, shape),
        "resets": lambda: rng.random(shape) < 0.3,
    }
    chosen = draw(st.sets(st.sampled_from(sorted(arrays)), max_size=2))
    call |= {name: arrays[name]() for name in sorted(chosen)}
    return batch, T, shape, call


def make(layer):
    name, options = layer
    return getattr(scanrnn.nnx, name)(D, H, **options, rngs=nnx.Rngs(0))


@pytest.mark.slow
@generated(max_examples=25)
@hypothesis.given(layers(), calls())
def test_shapes_and_dtypes_follow_from_the_arguments(layer, drawn):
    """This holds for NNX and for Linen layers. Nothing is compiled."""
    (batch, T, shape, call), (name, options) = drawn, layer
    xs = jax.ShapeDtypeStruct((*shape, D), jnp.float32)
    rnn = make(layer)
    run = functools.partial(rnn, return_carry=True, **call)
    carry, ys = jax.eval_shape(run, xs)
    features = H * (1 + options["bidirectional"])
    assert ys.shape == (*shape, features)
    if options["dtype"] is not None:
        assert ys.dtype == options["dtype"]
    wide = jnp.promote_types(jnp.float32, options["param_dtype"])
    steps = (T,) if call["return_all_carries"] else ()
    sizes = (*steps, *batch, H) if call["time_major"] else (*batch, *steps, H)
    for leaf in jax.tree.leaves(carry):
        assert (leaf.shape, leaf.dtype) == (sizes, wide)
    one = carry if options["num_layers"] == 1 else carry[0]
    assert isinstance(one, tuple)
    twin = getattr(scanrnn.linen, name)(H, **options)
    call = {"return_carry": True, **call}
    other, _ = jax.eval_shape(
        lambda xs: twin.init_with_output(jax.random.key(0), xs, **call), xs
    )
    assert jax.tree.structure(other) == jax.tree.structure((carry, ys))
    types = [(a.shape, a.dtype) for a in jax.tree.leaves(other)]
    assert types == [(a.shape, a.dtype) for a in jax.tree.leaves((carry, ys))]


def example(array, b, batch, time_major):
    """One example of an array that has batch axes and a time axis."""
    array = np.moveaxis(array, 0, len(batch)) if time_major else array
    return array[b]


def by_hand(rnn, xs, call, pick):
    """The outputs and last carries of one example, without a loop of JAX."""
    T = len(xs)
    length = int(pick("seq_lengths", T))
    ids = pick("segment_ids", np.ones(T, int))
    mask = pick("mask", np.ones(T, bool))
    resets = pick("resets", np.zeros(T, bool))
    counted = [t for t in range(length) if mask[t] and ids[t] != 0]
    carries = []
    for index, directions in enumerate(rnn.stack):
        outs = []
        for k, (cell, params) in enumerate(directions):
            backward = call["reverse"] != bool(k)
            order = range(T)[::-1] if backward else range(T)
            x = jnp.zeros(xs[0].shape)
            carry = first = cell.initial_carry(params, x, jnp.float64)
            ys, begins = {}, False
            for t in order:
                # The later one of the steps between which the run goes on.
                later = t + backward
                if later < length:
                    edge = later > 0 and ids[later] != ids[later - 1]
                    begins = begins or resets[later] or edge
                if t in counted:
                    carry, begins = first if begins else carry, False
                    carry, ys[t] = cell.step(params, carry, xs[t])
            outs.append(ys)
            carries.append(carry)
        below, size = xs, H * len(directions)
        xs = [
            jnp.concatenate([ys[t] for ys in outs]) if t in counted else jnp.zeros(size)
            for t in range(T)
        ]
        skip = {False: False, True: True, "gnmt": index >= 2}[rnn.residual]
        if skip and below[0].shape == xs[0].shape:
            xs = [a + b for a, b in zip(below, xs, strict=True)]
    return counted, length, xs, carries


def check_by_hand(layer, drawn):
    (batch, T, shape, call), (name, options) = drawn, layer
    options = options | {"dtype": None, "param_dtype": jnp.float64}
    call = call | {"return_all_carries": False}
    rnn = make((name, options))
    xs = np.random.default_rng(1).normal(size=(*shape, D))
    carry, got = rnn(jnp.asarray(xs), return_carry=True, **call)
    for b in np.ndindex(*batch):

        def pick(name, default, b=b):
            if name not in call:
                return default
            if name == "seq_lengths":
                return call[name][b]
            return example(call[name], b, batch, call["time_major"])

        one = example(xs, b, batch, call["time_major"])
        counted, length, ys, carries = by_hand(rnn, list(one), call, pick)
        mine = example(np.asarray(got), b, batch, call["time_major"])
        turned = call["reverse"] and not call["keep_order"]
        for t in range(T):
            at = length - 1 - t if turned and t < length else t
            if t in counted:
                np.testing.assert_allclose(mine[at], ys[t], rtol=1e-9, atol=1e-10)
            elif call["zero_padding"]:
                assert not mine[at].any()
        fields = [np.asarray(leaf)[b] for leaf in jax.tree.leaves(carry)]
        for field, want in zip(fields, jax.tree.leaves(carries), strict=True):
            np.testing.assert_allclose(field, want, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@generated(max_examples=4)
@hypothesis.given(layers(), calls(least=1))
def test_values_are_those_of_steps_made_by_hand(layer, drawn):
    check_by_hand(layer, drawn)


@pytest.mark.slow
@generated(max_examples=40)
@hypothesis.given(layers(), calls(least=1))
def test_values_of_many_are_those_of_steps_made_by_hand(layer, drawn):
    check_by_hand(layer, drawn)
