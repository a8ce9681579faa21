"""Cells that users wrote for NNX or Linen, in our layers and in Flax's own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import scanrnn

T, B, D, H, S = 4, 3, 3, 4, 5
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


XS, LENGTHS = normal(B, T, D), jnp.array([T, 2, 0])
COUNTS = np.arange(T) < np.asarray(LENGTHS)[:, None]


def attended(dense, carry, x, seen):
    """One step of a decoder: logits, attention weights, and a token."""
    weights = jax.nn.softmax(carry @ seen.T)
    carry = jnp.tanh(dense(jnp.concatenate([carry, x, weights], axis=-1)))
    return carry, {"logits": carry, "attention": (weights, jnp.argmax(carry, -1))}


class Decoder(nnx.Module):
    """A cell without Flax's base class; its first carry needs other arguments."""

    num_feature_axes = 1

    def __init__(self, rngs):
        self.dense = nnx.Linear(H + D + S, H, rngs=rngs)
        self.seen = nnx.Param(normal(S, H))

    def initialize_carry(self, memory, scale):
        raise AssertionError("nobody has these arguments")

    def __call__(self, carry, x):
        return attended(self.dense, carry, x, self.seen[...])


class LinenDecoder(nn.Module):
    num_feature_axes: int = 1

    def initialize_carry(self, memory, scale, width):
        raise AssertionError("nobody has these arguments")

    @nn.compact
    def __call__(self, carry, x):
        return attended(nn.Dense(H), carry, x, normal(S, H))


def nnx_runs():
    """Our layer and Flax's, as functions of the arguments of a call."""
    kinds = scanrnn.nnx.RNN, nnx.RNN
    return [kind(Decoder(nnx.Rngs(0))) for kind in kinds]


def linen_runs():
    pair = [kind(LinenDecoder()) for kind in (scanrnn.linen.RNN, nn.RNN)]
    carry = jnp.zeros([B, H])
    trees = [rnn.init(jax.random.key(0), XS, initial_carry=carry) for rnn in pair]
    jax.tree.map(np.testing.assert_array_equal, *trees)
    return [functools.partial(rnn.apply, trees[0]) for rnn in pair]


RUNS = {"nnx": nnx_runs, "linen": linen_runs}
both_kinds = pytest.mark.parametrize("kind", RUNS)


@both_kinds
@pytest.mark.parametrize(
    "call",
    [{}, {"reverse": True}, {"reverse": True, "keep_order": True}],
    ids=["", "reverse", "keep_order"],
)
def test_outputs_may_be_a_tree_and_a_given_carry_is_taken(kind, call):
    ours, theirs = RUNS[kind]()
    call = {"initial_carry": normal(B, H), "return_carry": True} | call
    jax.tree.map(close, ours(XS, **call), theirs(XS, **call))


@both_kinds
def test_every_output_of_a_tree_is_turned_and_blanked(kind):
    ours, theirs = RUNS[kind]()
    call = {"initial_carry": normal(B, H), "seq_lengths": LENGTHS, "reverse": True}
    zeros = ours(XS, zero_padding=True, **call)
    carries, _ = ours(XS, return_all_carries=True, include_initial=True, **call)
    assert carries.shape == (B, T + 1, H)

    def compare(mine, wanted):
        assert mine.dtype == wanted.dtype
        close(mine[COUNTS], wanted[COUNTS])
        assert not np.asarray(mine)[~COUNTS].any()

    jax.tree.map(compare, zeros, theirs(XS, **call))


def test_directions_are_merged_output_by_output():
    pairs = zip(*(nnx_runs() for _ in range(2)), strict=True)
    kinds = scanrnn.nnx.Bidirectional, nnx.Bidirectional
    add = {"merge_fn": jnp.add}
    ours, theirs = (k(*pair, **add) for k, pair in zip(kinds, pairs, strict=True))
    carry = normal(B, H), normal(B, H, seed=1)
    jax.tree.map(close, *(r(XS, initial_carry=carry) for r in (ours, theirs)))


class Drawing(nnx.RNNCellBase):
    """A cell whose first carry and noise come from its own random streams."""

    num_feature_axes = 1

    def __init__(self, rngs):
        self.rngs = nnx.Rngs(carry=rngs.carry(), noise=rngs.noise())

    def initialize_carry(self, input_shape, rngs=None):
        return jax.random.normal(self.rngs.carry(), (*input_shape[:-1], D))

    def __call__(self, carry, x):
        carry = jnp.tanh(carry + x + jax.random.normal(self.rngs.noise(), (D,)))
        return carry, carry


def test_a_cell_draws_its_carry_from_its_own_stream_as_in_flax():
    pair = [k(Drawing(nnx.Rngs(0))) for k in (scanrnn.nnx.RNN, nnx.RNN)]
    run = nnx.jit(lambda rnn, xs: rnn(xs))
    for _ in range(2):
        close(*(run(rnn, XS) for rnn in pair))
    counts = [rnn.cell.rngs.carry.count[...] for rnn in pair]
    assert counts[0] == counts[1] == 2


def test_a_stream_that_a_cell_has_not_is_no_error():
    cells = [nnx.GRUCell(D, H, rngs=nnx.Rngs(0)) for _ in range(2)]
    kinds = scanrnn.nnx.RNN, nnx.RNN
    pair = zip(kinds, cells, strict=True)
    close(*(kind(cell, broadcast_rngs="dropout")(XS) for kind, cell in pair))


@both_kinds
def test_a_cell_without_a_carry_cannot_start_anew(kind):
    class Summing(nnx.RNNCellBase if kind == "nnx" else nn.RNNCellBase):
        num_feature_axes = 1

        def __call__(self, carry, x):
            return carry + x, carry + x

    rnn = getattr(scanrnn, kind).RNN(Summing())
    run = rnn if kind == "nnx" else functools.partial(rnn.apply, {})
    given = {"initial_carry": jnp.ones([B, D])}
    close(run(XS, **given), 1 + jnp.cumsum(XS, axis=1))
    for call in ({}, given | {"resets": COUNTS}):
        with pytest.raises(ValueError, match="Summing has no initialize_carry"):
            run(XS, **call)


def test_a_carry_of_all_examples_together_is_refused_where_steps_do_not_count():
    class Counting(nnx.RNNCellBase):
        num_feature_axes = 1

        def __call__(self, carry, x):
            return carry + 1, x * carry

    rnn = scanrnn.nnx.RNN(Counting())
    close(rnn(XS, initial_carry=0.0), XS * np.arange(T)[:, None])
    with pytest.raises(ValueError, match=r"array of shape \(\) in its carry or"):
        rnn(XS, initial_carry=0.0, seq_lengths=LENGTHS)
