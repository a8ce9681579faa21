"""Streams of cells with state besides their carry."""

import jax.numpy as jnp
import pytest
from flax import nnx

import scanrnn
from scanrnn.serving import Streaming
from tests.test_serving_streaming import close, xs


class Stateful(nnx.Module):
    """A cell with statistics, a scale and dropout."""

    num_feature_axes = 1

    def __init__(self, kept=nnx.BatchStat):
        self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.count = kept(jnp.zeros(()))
        self.scale = nnx.Variable(jnp.full(3, 0.5))
        self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(1))
        self.counts = True

    def __call__(self, carry, x):
        if self.counts:
            self.count[...] = self.count[...] + 1
        carry = self.dropout(self.scale[...] * carry) + self.linear(x)
        carry = carry * (1 + self.count[...])
        return carry, carry

    def initialize_carry(self, shape, rngs=None):
        return jnp.zeros(shape)


class OfMine(nnx.Variable):
    pass


@pytest.mark.parametrize("kept", [nnx.BatchStat, OfMine])
def test_a_state_that_no_chunk_hands_on_is_refused(kept):
    rnn = scanrnn.nnx.RNN(Stateful(kept))
    with pytest.raises(ValueError, match="Stateful changes its state count, and only"):
        Streaming(rnn, features=(3,))
    rnn.cell.counts = rnn.cell.dropout.deterministic = False
    with pytest.raises(ValueError, match="state dropout.rngs.*count.*rnn.eval()"):
        Streaming(rnn, features=(3,))


def test_a_state_that_no_step_changes_is_streamed():
    rnn, x = scanrnn.nnx.RNN(Stateful()), xs(2, 6, 3)
    rnn.cell.counts = False
    stream, wanted = Streaming(rnn, 2, features=(3,)), rnn(x)
    close(stream(x[:, :2]), wanted[:, :2])
    close(stream(x[:, 2:]), wanted[:, 2:])


def test_a_state_that_every_step_gets_anew_is_streamed():
    axes = {nnx.BatchStat: None, ...: nnx.Carry}
    rnn, x = scanrnn.nnx.RNN(Stateful(), state_axes=axes), xs(2, 6, 3)
    stream, wanted = Streaming(rnn, 2, features=(3,)), rnn(x)
    close(stream(x[:, :2]), wanted[:, :2])
    close(stream(x[:, 2:]), wanted[:, 2:])
