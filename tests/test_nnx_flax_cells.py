"""Flax's cells, and cells that users write for Flax, in our NNX layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from scanrnn.nnx import GRU, RNN, Bidirectional

T, B, D, H = 5, 3, 3, 4
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


class Busy(nnx.RNNCellBase):
    """A cell with batch statistics, a dropout mask, and a count of steps."""

    def __init__(self, rngs, rate=0.5):
        self.dense = nnx.Linear(D + H, H, rngs=rngs)
        self.norm = nnx.BatchNorm(D, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.steps = nnx.BatchStat(jnp.zeros((), jnp.int32))

    @property
    def num_feature_axes(self):
        return 1

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.zeros((*input_shape[:-1], H))

    def __call__(self, carry, x):
        self.steps[...] += 1
        both = jnp.concatenate([self.dropout(carry), self.norm(x)], axis=-1)
        carry = jnp.tanh(self.dense(both))
        return carry, carry


def busy(seed=0):
    return Busy(nnx.Rngs(seed, dropout=seed + 1))


def leaves(module):
    """Every array of a module; random keys become numbers."""
    keys = jax.dtypes.prng_key
    return [
        jax.random.key_data(a) if jnp.issubdtype(a.dtype, keys) else a
        for a in jax.tree.leaves(nnx.state(module))
    ]


@pytest.mark.parametrize("shared", [None, "dropout"], ids=["split", "shared"])
@pytest.mark.parametrize("lengths", [None, [T, 2, 1]], ids=["", "lengths"])
def test_a_cell_with_a_state_equals_flax(shared, lengths):
    """Outputs and the state of the cell agree after each call, with noise too."""
    pair = [kind(busy(), broadcast_rngs=shared) for kind in (RNN, nnx.RNN)]
    for seed in range(2):
        xs = normal(B, T, D, seed=seed)
        call = {} if lengths is None else {"seq_lengths": jnp.array(lengths)}
        counts = np.arange(T) < np.array(lengths or [T] * B)[:, None]
        if lengths is not None:  # in Flax, the padding counts, also for the statistics
            xs = jnp.where(counts[..., None], xs, 0)
        (carry, ys), (want_carry, want) = (
            rnn(xs, return_carry=True, **call) for rnn in pair
        )
        close(ys[counts], want[counts])
        close(carry, want_carry)
        jax.tree.map(close, *(leaves(rnn.cell) for rnn in pair))
    assert pair[0].cell.steps[...] == 2 * T


def test_a_state_that_does_not_move_is_the_same_at_every_step():
    rnn = RNN(busy(), state_axes={nnx.BatchStat: None, ...: nnx.Carry})
    before = rnn.cell.norm.mean[...]
    rnn(normal(B, T, D))
    assert rnn.cell.steps[...] == 0
    np.testing.assert_array_equal(rnn.cell.norm.mean[...], before)
    assert rnn.cell.dropout.rngs is not None
    assert rnn.cell.dropout.rngs.count[...] == T


def test_a_state_goes_on_under_nnx_transforms():
    xs = normal(B, T, D)
    plain, jitted = RNN(busy()), RNN(busy())
    close(nnx.jit(lambda rnn, xs: rnn(xs))(jitted, xs), plain(xs))
    jax.tree.map(close, leaves(jitted), leaves(plain))
    grads = nnx.grad(lambda rnn: rnn(xs).sum())(jitted)
    assert jnp.abs(grads.cell.dense.kernel[...]).max() > 0
    assert jitted.cell.steps[...] == 2 * T


@pytest.mark.parametrize("kind", [nnx.GRUCell, nnx.LSTMCell])
def test_our_bidirectional_equals_that_of_flax(kind):
    cells = [
        kind(D, H, param_dtype=jnp.float64, dtype=jnp.float64, rngs=nnx.Rngs(seed))
        for seed in (0, 1)
    ]
    ours = Bidirectional(*map(RNN, cells), return_carry=True)
    theirs = nnx.Bidirectional(*map(nnx.RNN, cells), return_carry=True)
    xs, lengths = normal(B, T, D, dtype=jnp.float64), jnp.array([T, 2, 1])
    jax.tree.map(close, ours(xs), theirs(xs))
    (carry, ys), (want_carry, want) = (
        r(xs, seq_lengths=lengths) for r in (ours, theirs)
    )
    jax.tree.map(close, carry, want_carry)
    counts = np.arange(T) < np.array(lengths)[:, None]
    close(ys[counts], want[counts])
    again = ours(xs, initial_carry=carry)
    jax.tree.map(close, again, theirs(xs, initial_carry=carry))


def test_bidirectional_passes_all_arguments_on():
    pair = [GRU(D, H, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    both, xs = Bidirectional(*pair, merge_fn=jnp.add), normal(B, T, D)
    mask = np.array([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1] * T], bool)
    call = {"mask": mask, "zero_padding": True}
    back = pair[1](xs, reverse=True, keep_order=True, **call)
    close(both(xs, **call), pair[0](xs, **call) + back)
    assert not np.asarray(both(xs, **call))[~mask].any()
    carries, _ = both(xs, return_all_carries=True, include_initial=True)
    assert [carry.h.shape for carry in carries] == [(B, T + 1, H)] * 2


def test_bidirectional_refuses_what_is_no_pair():
    both = Bidirectional(*(GRU(D, H, rngs=nnx.Rngs(0)) for _ in range(2)))
    with pytest.raises(TypeError, match="initial_carry must be a pair"):
        both(normal(B, T, D), initial_carry=jnp.zeros([B, H]))
