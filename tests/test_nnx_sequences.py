"""Sequences with steps that do not count: compared with the other steps alone."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from scanrnn import cells
from scanrnn.nnx import GRU, LSTM, RNN
from tests.jaxprs import gemms_in_loops

T, B, D, H = 6, 3, 3, 4
LAYERS = {
    "lstm": functools.partial(LSTM, D, H, norm="ba2016"),
    "both": functools.partial(GRU, D, H, num_layers=2, bidirectional=True),
    "flax": lambda **options: RNN(
        nnx.OptimizedLSTMCell(D, H, param_dtype=jnp.float64, rngs=nnx.Rngs(0)),
        **{k: v for k, v in options.items() if k not in ("param_dtype", "rngs")},
    ),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)


def make(name, **options):
    options = {"param_dtype": jnp.float64, "keep_order": True, **options}
    return LAYERS[name](**options, rngs=nnx.Rngs(0))


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def alone(rnn, xs, steps, carry=None, **call):
    """The outputs and the last carry of one example that has only these steps."""
    if carry is not None:
        call["initial_carry"] = carry
    return rnn(xs[np.asarray(steps)], return_carry=True, **call)


def first_carry(rnn, xs):
    """A carry that is not zero."""
    carry = rnn(xs, return_carry=True)[0]
    leaves, tree = jax.tree.flatten(carry)
    drawn = [normal(*leaf.shape, seed=k) for k, leaf in enumerate(leaves)]
    return jax.tree.unflatten(tree, drawn)


def example(tree, b):
    return jax.tree.map(lambda leaf: leaf[b], tree)


@every_layer
@both_ways
def test_lengths_equal_each_sequence_alone(name, reverse):
    rnn, xs = make(name, reverse=reverse), normal(B, T, D)
    lengths = np.array([T, 2, 0])
    carry = first_carry(rnn, xs)
    xs = jnp.where(np.arange(T)[:, None] < lengths[:, None, None], xs, np.nan)
    call = functools.partial(rnn, initial_carry=carry, return_carry=True)
    last, ys = jax.jit(call)(xs, seq_lengths=lengths)
    for b, length in enumerate(lengths):
        if length == 0:  # the carry did not change
            jax.tree.map(close, example(last, b), example(carry, b))
            continue
        want_last, want = alone(rnn, xs[b], range(length), example(carry, b))
        close(ys[b, :length], want)
        jax.tree.map(close, example(last, b), want_last)


TRACED = {
    "jit": lambda run: jax.jit(run),
    "nnx.jit": lambda run: nnx.jit(run),
    "remat": lambda run: jax.jit(jax.remat(run)),
    "scan": lambda run: (
        lambda xs: jax.lax.scan(lambda carry, xs: (carry, run(xs)), 0, xs[None])[1][0]
    ),
    "vmap": lambda run: lambda xs: jax.vmap(run)(xs[None])[0],
}


@pytest.mark.parametrize("kind", TRACED)
def test_lengths_and_segments_may_be_constants_of_what_is_traced(kind):
    """They are checked there too, also for numbers that no sequence can have."""
    rnn, xs = LSTM(D, H, rngs=nnx.Rngs(0)), normal(B, T, D)
    good = {"seq_lengths": jnp.array([T, 2, 0]), "segment_ids": jnp.ones([B, T], int)}
    run = functools.partial(rnn, **good)
    np.testing.assert_allclose(TRACED[kind](run)(xs), run(xs), rtol=1e-6)
    long = functools.partial(rnn, seq_lengths=[T + 1, 2, 0])
    with pytest.raises(ValueError, match=f"values from 0 to {T + 1}"):
        TRACED[kind](long)(xs)
    negative = functools.partial(rnn, segment_ids=-good["segment_ids"])
    with pytest.raises(ValueError, match="segment_ids has the value -1"):
        TRACED[kind](negative)(xs)


@both_ways
@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64"])
def test_a_traced_length_out_of_range_is_the_nearest_one(reverse, dtype):
    options = {"reverse": reverse, "return_carry": True, "rngs": nnx.Rngs(0)}
    rnn, xs = LSTM(D, H, **options), normal(B, T, D)
    least = 0 if dtype == "uint32" else -3
    lengths = jnp.array([T + 3, least, 2], dtype)
    call = {"return_all_carries": True, "include_initial": True}
    run = jax.jit(lambda lengths: rnn(xs, seq_lengths=lengths, **call))
    jax.tree.map(close, run(lengths), run(jnp.array([T, 0, 2], dtype)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run(lengths)))


@dataclasses.dataclass(frozen=True)
class Pointing(cells.Cell):
    """A cell of ours that returns a tree: its carry, and where the carry is largest."""

    dtype: Any = jnp.bfloat16

    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        return {"kernel": jax.random.normal(key, (in_features, hidden_features), dtype)}

    def initial_carry(self, params, x, dtype=None):
        return jnp.zeros_like(x @ params["kernel"], dtype=dtype)

    def step(self, params, carry, x):
        carry = 0.9 * carry + x @ params["kernel"]
        return carry, (carry, jnp.argmax(carry, axis=-1, keepdims=True))


def test_the_last_layer_may_give_a_tree():
    xs = normal(B, T, D).astype(jnp.float32)
    rnn = RNN(Pointing(), D, H, bidirectional=True, rngs=nnx.Rngs(0))
    ys, at = rnn(xs, seq_lengths=jnp.array([T, 2, 0]), zero_padding=True)
    assert (ys.shape, ys.dtype) == ((B, T, 2 * H), jnp.bfloat16)
    assert at.shape == (B, T, 2) and jnp.issubdtype(at.dtype, jnp.integer)
    assert not np.asarray(at[1, 2:]).any()
    for options in ({"num_layers": 2}, {"residual": True}):
        rnn = RNN(Pointing(), D, D, **options, rngs=nnx.Rngs(0))
        with pytest.raises(TypeError, match="layer 0 gives a tuple, want one array"):
            rnn(xs)


NOISY = {
    "dropout": lambda cell: cells.dropout(cell, input=0.5, output=0.5),
    "of each step": lambda cell: cells.dropout(cell, input=0.5, same_mask=False),
    "zoneout": lambda cell: cells.zoneout(cell, h=0.5, c=0.5),
    "weights": lambda cell: cells.weight_drop(cell, 0.5),
}


@pytest.mark.parametrize("wrapper", NOISY)
def test_a_noisy_cell_may_have_no_steps_to_make(wrapper):
    rnn = RNN(NOISY[wrapper](cells.lstm()), D, H, rngs=nnx.Rngs(0))
    call = {"return_carry": True, "rngs": nnx.Rngs(dropout=0)}
    carry, ys = rnn(normal(B, 0, D), **call)
    assert ys.shape == (B, 0, H) and not np.asarray(carry.h).any()


@every_layer
@both_ways
def test_a_mask_equals_the_steps_that_count_alone(name, reverse):
    rnn, xs = make(name, reverse=reverse), normal(B, T, D)
    mask = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 0], [1] * T], bool)
    xs = jnp.where(mask[..., None], xs, np.nan)
    last, ys = rnn(xs, mask=mask, return_carry=True)
    for b in range(B):
        want_last, want = alone(rnn, xs[b], np.flatnonzero(mask[b]))
        close(ys[b, mask[b]], want)
        jax.tree.map(close, example(last, b), want_last)


@every_layer
@both_ways
def test_segments_equal_each_alone(name, reverse):
    rnn, xs = make(name, reverse=reverse), normal(B, T, D)
    ids = np.array([[1, 1, 2, 2, 2, 0], [5, 3, 3, 0, 7, 7], [1] * T])
    xs = jnp.where((ids != 0)[..., None], xs, np.nan)
    ys = rnn(xs, segment_ids=ids)
    for b in range(B):
        for number in set(ids[b]) - {0}:
            steps = np.flatnonzero(ids[b] == number)
            close(ys[b, steps], alone(rnn, xs[b], steps)[1])


@pytest.mark.parametrize("name", ["lstm", "flax"])
def test_resets_come_before_the_step(name):
    rnn, xs = make(name), normal(B, T, D)
    resets = np.array([[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0] * T], bool)
    carry = first_carry(rnn, xs)
    last, ys = rnn(xs, resets=resets, initial_carry=carry, return_carry=True)
    for b in range(B):
        begin, first = 0, example(carry, b)
        for end in [*np.flatnonzero(resets[b]), T]:
            if end > begin:
                state, want = alone(rnn, xs[b], range(begin, end), first)
                close(ys[b, begin:end], want)
            begin, first = end, None
        jax.tree.map(close, example(last, b), state)


def test_a_step_at_a_time_equals_the_sequence_with_resets():
    """An RL agent runs like this: it resets after a step that was `done`."""
    rnn, xs = make("lstm"), normal(B, T, D)
    dones = np.array([[0, 1, 0, 0, 1, 0], [0] * T, [1] * T], bool)
    prev_done = np.concatenate([np.zeros((B, 1), bool), dones[:, :-1]], axis=1)
    want = rnn(xs, resets=prev_done)
    carry, ys = None, []
    for t in range(T):
        carry, y = rnn(
            xs[:, t : t + 1],
            initial_carry=carry,
            resets=prev_done[:, t : t + 1],
            return_carry=True,
        )
        ys.append(y)
    close(jnp.concatenate(ys, axis=1), want)


@every_layer
def test_no_gradient_comes_from_padding_though_it_is_nan(name):
    rnn, xs = make(name, zero_padding=True), normal(B, T, D)
    lengths = np.array([T, 2, 0])
    inside = np.arange(T)[:, None] < lengths[:, None, None]

    def loss(rnn, xs):
        return jnp.sum(jnp.sin(rnn(xs, seq_lengths=lengths)))

    want, gradient = jax.value_and_grad(loss, argnums=(0, 1))(rnn, xs)
    got, nans = jax.value_and_grad(loss, argnums=(0, 1))(
        rnn, jnp.where(inside, xs, np.nan)
    )
    close(got, want)
    assert not jnp.any(jnp.where(inside, 0, gradient[1]))
    jax.tree.map(close, nans, gradient)


def test_nothing_of_padding_goes_past_the_cells():
    rnn = GRU(
        H, H, num_layers=2, residual=True, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
    )
    xs, lengths = normal(B, T, H), np.array([T, 2, 0])
    inside = np.arange(T)[:, None] < lengths[:, None, None]
    ys = rnn(jnp.where(inside, xs, np.nan), seq_lengths=lengths)
    close(ys, rnn(jnp.where(inside, xs, 0), seq_lengths=lengths))


@every_layer
def test_zero_padding_and_any_batch_axes(name):
    rnn, xs = make(name), normal(B, T, D)
    lengths = jnp.array([T, 2, 0])
    ys = rnn(xs, seq_lengths=lengths, zero_padding=True)
    plain = rnn(xs, seq_lengths=lengths)
    close(ys, jnp.where((np.arange(T) < lengths[:, None])[..., None], plain, 0))
    more = rnn(xs.reshape(1, B, T, D), seq_lengths=lengths[None], return_carry=True)
    close(more[1][0], plain)
    one = rnn(xs[1], seq_lengths=lengths[1])
    close(one[:2], plain[1, :2])
    major = rnn(jnp.swapaxes(xs, 0, 1), seq_lengths=lengths, time_major=True)
    close(jnp.swapaxes(major, 0, 1), plain)


@pytest.mark.parametrize("seq_lengths", [None, [T, 2, 0]])
@pytest.mark.parametrize("kind", [nnx.OptimizedLSTMCell, nnx.SimpleCell])
def test_reverse_puts_outputs_where_flax_does(kind, seq_lengths):
    cell = kind(D, H, param_dtype=jnp.float64, dtype=jnp.float64, rngs=nnx.Rngs(0))
    xs = normal(B, T, D)
    lengths = None if seq_lengths is None else jnp.array(seq_lengths)
    for keep_order in (False, True):
        options = {"reverse": True, "keep_order": keep_order}
        got = RNN(cell, **options)(xs, seq_lengths=lengths)
        want = nnx.RNN(cell, **options)(xs, seq_lengths=lengths)
        for b, length in enumerate(seq_lengths or [T] * B):
            close(got[b, :length], want[b, :length])


@every_layer
@pytest.mark.parametrize("keep_order", [True, False])
@both_ways
def test_all_carries_are_those_after_each_step(name, reverse, keep_order):
    rnn = make(name, reverse=reverse, keep_order=keep_order)
    xs = normal(B, T, D)
    first = first_carry(rnn, xs)
    call = functools.partial(rnn, xs, initial_carry=first)
    last, ys = call(return_carry=True)
    carries, same = call(return_all_carries=True)
    close(same, ys)
    longer, _ = call(return_all_carries=True, include_initial=True)
    if name == "both":
        first, last, carries, longer = first[0], last[0], carries[0], longer[0]
    directions = zip(*map(jax.tree.leaves, (first, last, carries, longer)), strict=True)
    for index, (begin, end, every, all_) in enumerate(directions):
        second = name == "both" and index == 1
        backward = (reverse != second) if keep_order or not reverse else second
        at_end, at_begin = (0, -1) if backward else (-1, 0)
        close(every[:, at_end], end)
        close(all_[:, at_begin], begin)
        close(all_[:, :-1] if backward else all_[:, 1:], every)


@pytest.mark.parametrize("option", ["seq_lengths", "mask", "resets", "segment_ids"])
def test_what_counts_costs_no_gemm(option):
    rnn, xs = make("lstm"), normal(B, T, D)
    value = {
        "seq_lengths": jnp.array([T, 2, 0]),
        "mask": jnp.ones([B, T], bool),
        "resets": jnp.zeros([B, T], bool),
        "segment_ids": jnp.ones([B, T], int),
    }[option]

    def loss(rnn, xs, value):
        return jnp.sum(jnp.sin(rnn(xs, **{option: value})))

    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1), allow_int=True))(
        rnn, xs, value
    )
    assert gemms_in_loops(jaxpr.jaxpr) == [1, 1]


def test_bidirectional_equals_two_layers_of_one_direction():
    rnn = LSTM(D, H, bidirectional=True, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    xs, lengths = normal(B, T, D), jnp.array([T, 2, 1])
    halves = []
    for layers, reverse in ((rnn.layers, False), (rnn.backward_layers, True)):
        one = LSTM(D, H, reverse=reverse, keep_order=True, rngs=nnx.Rngs(1))
        one.layers = layers
        one.carry_dtype = jnp.float64
        halves.append(one(xs, seq_lengths=lengths, return_carry=True))
    last, ys = rnn(xs, seq_lengths=lengths, return_carry=True)
    close(ys, jnp.concatenate([half[1] for half in halves], axis=-1))
    jax.tree.map(close, last, tuple(half[0] for half in halves))


def test_residual_gnmt_and_highway_join_layers():
    xs = normal(B, T, H)
    options = {"num_layers": 4, "param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}
    rnn = GRU(H, H, residual="gnmt", **options)
    ys = xs
    for index, params in enumerate(rnn.layers):
        one = GRU(H, H, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        one.layers = nnx.List([params])
        ys = one(ys) + (ys if index >= 2 else 0)
    close(rnn(xs), ys)
    rnn = GRU(
        H, H, highway=True, num_layers=1, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
    )
    cell = cells.highway(cells.gru())
    params = {name: param[...] for name, param in rnn.layers[0].items()}
    carry = cell.initial_carry(params, xs[:, 0])
    close(rnn(xs)[:, 0], cell.step(params, carry, xs[:, 0])[1])


def test_dropout_is_between_layers_and_needs_rngs():
    rnn = GRU(
        D, H, num_layers=2, dropout=0.5, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
    )
    xs = normal(B, T, D)
    quiet = rnn(xs, deterministic=True)
    with pytest.raises(ValueError, match="rngs is None.*deterministic=True"):
        rnn(xs)
    one, same, other = (rnn(xs, rngs=nnx.Rngs(dropout=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other) and not np.allclose(one, quiet)
    rnn.eval()
    close(rnn(xs), quiet)
    with pytest.warns(UserWarning, match="dropout=0.5 lies between layers.*one"):
        single = GRU(D, H, dropout=0.5, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    single(xs)  # there is no dropout between layers


@pytest.mark.parametrize(
    "features, layers, name, value",
    [(D, 1, "residual", True), (H, 2, "residual", "gnmt"), (D, 1, "highway", True)],
)
def test_a_skip_that_fits_no_layer_is_told(features, layers, name, value):
    match = f"{name}={value!r} does nothing.* {features} to {H}"
    with pytest.warns(UserWarning, match=match):
        GRU(features, H, num_layers=layers, rngs=nnx.Rngs(0), **{name: value})


def test_noise_of_a_cell_is_drawn_by_the_layer():
    cell = cells.zoneout(cells.lstm(recurrent_dropout=0.5), h=0.1, c=0.1)
    rnn = RNN(cell, D, H, num_layers=2, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    xs = normal(B, T, D)
    with pytest.raises(ValueError, match="noise to draw"):
        rnn(xs)
    one, same = (rnn(xs, rngs=nnx.Rngs(dropout=3)) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, rnn(xs, deterministic=True))


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_of_any_integers_are_not_promoted(dtype, reverse):
    rnn = GRU(3, 4, reverse=reverse, rngs=nnx.Rngs(0))
    xs, lengths = jnp.ones((3, 5, 3)), np.array([1, 0, 5])
    wanted = rnn(xs, seq_lengths=lengths, zero_padding=True)
    with jax.numpy_dtype_promotion("strict"):
        for given in (lengths.astype(dtype), jnp.asarray(lengths, dtype)):
            found = rnn(xs, seq_lengths=given, zero_padding=True)
            np.testing.assert_array_equal(found, wanted)
            run = nnx.jit(lambda rnn, n: rnn(xs, seq_lengths=n, zero_padding=True))
            np.testing.assert_allclose(run(rnn, given), wanted, rtol=1e-12)


@pytest.mark.parametrize("dtype", [float, "float64", jnp.float64, np.dtype("f8")])
def test_carry_is_as_wide_as_the_weights_however_they_are_named(dtype):
    rnn = GRU(3, 4, param_dtype=dtype, return_carry=True, rngs=nnx.Rngs(0))
    carry, ys = rnn(jnp.ones((2, 5, 3)))
    assert carry.h.dtype == ys.dtype == jnp.float64
