"""Flax's own tools work with our layers: views and tables."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import cells

X = jnp.ones([2, 4, 3], jnp.float32)


class Model(nnx.Module):
    """A layer of a subclass, a Flax layer, and a layer of the base class."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.below = scanrnn.nnx.LSTM(3, 3, recurrent_dropout=0.5, rngs=rngs)
        self.dense = nnx.Linear(3, 3, rngs=rngs)
        self.above = scanrnn.nnx.RNN(cells.gru(), 3, 3, num_layers=2, rngs=rngs)

    def __call__(self, x, rngs=None):
        return self.above(self.dense(self.below(x, rngs=rngs)))


def test_a_view_is_quiet_and_leaves_the_model_noisy():
    model = Model()
    quiet = nnx.view(model, deterministic=True)
    np.testing.assert_array_equal(quiet(X), quiet(X))
    with pytest.raises(ValueError, match="rngs is None"):
        model(X)
    noisy = nnx.view(quiet, deterministic=False)
    assert not np.allclose(noisy(X, nnx.Rngs(0)), quiet(X))
    assert "leaves out dropout" in nnx.view_info(model)


def test_a_table_is_made_of_a_model_that_works_on():
    model = Model()
    model.eval()
    want = model(X)
    table = nnx.tabulate(model, X, console_kwargs={"width": 200})
    assert all(word in table for word in ("LSTM", "RNN", "Linear"))
    assert "places" not in table and "stack" not in table
    np.testing.assert_array_equal(model(X), want)
    assert Model().below.layers[0]["kernel"].shape == (3, 12)
