"""Carries without names: their order, and the conversion to another order."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import cells

D, H = 3, 4
X = jnp.ones([2, D], jnp.float32)
ZERO, ONE = (make([2, H], jnp.float32) for make in (jnp.zeros, jnp.ones))


@pytest.mark.parametrize("kind", [cells.LSTMCarry, cells.ConvLSTMCarry])
def test_a_carry_of_flax_is_converted_by_name(kind):
    carry = kind.from_flax((ONE, ZERO))
    assert carry.c is ONE and carry.h is ZERO
    assert carry.to_flax() == (ONE, ZERO)


def test_a_layer_goes_on_where_one_of_flax_stopped():
    """The cell has a memory that is not an output, so a wrong order shows."""
    theirs = nnx.RNN(nnx.OptimizedLSTMCell(D, H, rngs=nnx.Rngs(0)), return_carry=True)
    ours = scanrnn.interop.from_nnx(theirs).layer(return_carry=True)
    xs = nnx.Rngs(1).normal([2, 5, D], jnp.float32)
    first, _ = theirs(xs)
    want, _ = theirs(xs, initial_carry=first)
    got, _ = ours(xs, initial_carry=cells.LSTMCarry.from_flax(first))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got.to_flax(), want
    )


@pytest.mark.parametrize("carry", [3, (ONE, ZERO, ONE), (ONE,)])
def test_a_carry_of_flax_that_is_no_pair_is_refused(carry):
    with pytest.raises(TypeError, match=r"^LSTMCarry.from_flax: .* pair \(c, h\) of"):
        cells.LSTMCarry.from_flax(carry)


LSTM = scanrnn.nnx.LSTM(D, H, rngs=nnx.Rngs(0))
GRU = scanrnn.nnx.GRU(D, H, num_layers=2, rngs=nnx.Rngs(0))
FLAX = scanrnn.nnx.RNN(nnx.LSTMCell(D, H, rngs=nnx.Rngs(0)))
CELL = cells.lstm()
PARAMS = CELL.init(jax.random.key(0), D, H)


@pytest.mark.parametrize(
    "run, carry, words",
    [
        (LSTM, (ZERO, ONE), ["(h, c) is LSTMCarry(*carry)", "(c, h)", "from_flax"]),
        (LSTM, [ZERO, ONE], ["A plain list", "LSTMCarry.from_flax(carry)"]),
        (GRU, ((ZERO,), (ZERO,)), ["(h) is GRUCarry(*carry)"]),
        (GRU, (ZERO, ZERO), ["A plain array is GRUCarry(carry)"]),
        (FLAX, cells.LSTMCarry(ZERO, ONE), ["to_flax() of this LSTMCarry"]),
        (CELL, (ZERO, ONE), ["LSTMCarry(*carry)", "LSTMCarry.from_flax(carry)"]),
    ],
    ids=["tuple", "list", "of-layers", "array", "flax-cell", "cell"],
)
def test_a_carry_of_the_wrong_kind_says_how_it_is_converted(run, carry, words):
    with pytest.raises(TypeError, match="(?s)" + ".*".join(map(re.escape, words))):
        if run is CELL:
            run.step(PARAMS, carry, X)
        else:
            run(X[:, None], initial_carry=carry)
