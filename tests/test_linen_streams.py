"""Random streams, variables and tables of Linen layers, as Flax's own has them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import linen

KEY = jax.random.key(3)
XS = jnp.linspace(-1.0, 1.0, 2 * 5 * 3, dtype=jnp.float32).reshape(2, 5, 3)


class Noisy(nn.RNNCellBase):
    """A cell with dropout of its own."""

    @nn.compact
    def __call__(self, carry, x):
        carry = jnp.tanh(nn.Dense(4)(jnp.concatenate([carry, x], -1)))
        carry = nn.Dropout(0.5, deterministic=False)(carry)
        return carry, carry

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros((*input_shape[:-1], 4))

    @property
    def num_feature_axes(self):
        return 1


@pytest.mark.parametrize("split", [{}, {"dropout": True}], ids=["", "split"])
@pytest.mark.parametrize("rngs", [KEY, {"params": KEY}], ids=["key", "params"])
def test_cell_with_noise_may_draw_it_from_the_params_stream(rngs, split):
    """The noise is drawn with other keys than in Flax, as the docs say."""
    ours, flax = (
        kind(Noisy(), split_rngs={"params": False, **split})
        for kind in (linen.RNN, nn.RNN)
    )
    variables = ours.init(rngs, XS)
    wanted = flax.init(rngs, XS)
    assert jax.tree.all(jax.tree.map(np.array_equal, variables, wanted))
    ys = ours.apply(variables, XS, rngs=rngs)
    assert ys.shape == flax.apply(variables, XS, rngs=rngs).shape
    assert 0.2 < jnp.mean(ys == 0) < 0.8


@pytest.mark.parametrize("kind", [linen.RNN, nn.RNN], ids=["ours", "flax"])
def test_cell_that_a_loop_gives_no_stream_names_the_option_of_the_loop(kind):
    cell = linen.LSTMCell(4, recurrent_dropout=0.5, deterministic=False)
    variables, noise = kind(cell).init(KEY, XS), {"dropout": KEY}
    cure = 'split_rngs={"params": False, "dropout": False}'
    with pytest.raises(ValueError, match=f"LSTMCell: .* no stream .* {cure}"):
        kind(cell).apply(variables, XS, rngs=noise)
    cured = kind(cell, split_rngs={"params": False, "dropout": False})
    quiet = kind(cell.clone(deterministic=True)).apply(variables, XS)
    assert not np.allclose(cured.apply(variables, XS, rngs=noise), quiet)


def test_noise_of_a_layer_falls_back_to_the_params_stream():
    rnn = linen.GRU(4, num_layers=2, dropout=0.5, deterministic=False)
    variables = rnn.init(KEY, XS)
    runs = [rnn.apply(variables, XS, rngs=rngs) for rngs in (KEY, {"params": KEY})]
    np.testing.assert_array_equal(*runs)
    assert not np.allclose(runs[0], rnn.apply(variables, XS, deterministic=True))


@pytest.mark.parametrize("cell", [nn.GRUCell(4), linen.GRUCell(4), linen.LSTMCell(4)])
def test_apply_makes_the_weights_of_a_flax_cell_if_they_are_mutable(cell):
    rnn = linen.RNN(cell)
    rngs = {"params": KEY}
    ys, variables = rnn.apply({}, XS, rngs=rngs, mutable=["params"])
    np.testing.assert_array_equal(ys, rnn.apply(variables, XS))
    same = jax.tree.map(np.array_equal, variables, rnn.init(rngs, XS))
    assert jax.tree.all(same)


def test_weights_of_other_options_are_refused_by_name():
    plain, normed = linen.LSTM(4), linen.LSTM(4, norm="ba2016")
    with pytest.raises(ValueError, match="no 'norm_c'; "):
        normed.apply(plain.init(KEY, XS), XS)
    with pytest.raises(ValueError, match="an unknown 'norm_c'; "):
        plain.apply(normed.init(KEY, XS), XS)


def test_initializer_that_was_not_called_is_named():
    with pytest.raises(TypeError, match="kernel_init: returned .*must be called"):
        linen.LSTM(4, kernel_init=nn.initializers.lecun_normal).init(KEY, XS)


def test_metadata_that_is_no_dict_is_refused():
    with pytest.raises(TypeError, match="kernel_metadata: got 'model', want a dict"):
        scanrnn.nnx.LSTM(3, 4, kernel_metadata="model", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("wrong", [2**32 + 3, 3 - 2**32])
def test_lengths_beyond_the_integers_of_jax_are_refused(wrong):
    rnn = linen.GRU(4)
    variables = rnn.init(KEY, XS)
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="seq_lengths has values"),
    ):
        rnn.apply(variables, XS, seq_lengths=np.array([3, wrong]))


TABLES = {
    "layer": linen.LSTM(4),
    "Flax's cell": linen.RNN(nn.GRUCell(4)),
    "Flax's cell of many modules": linen.RNN(nn.OptimizedLSTMCell(4)),
}


@pytest.mark.parametrize("layer", TABLES.values(), ids=TABLES)
@pytest.mark.filterwarnings("error")
def test_table_of_a_layer_counts_operations_without_a_warning(layer):
    """Flax asks for the shapes of what each method returns, also if it is a cell."""
    xs = jnp.ones((2, 5, 3), jnp.float32)
    table = layer.tabulate(
        jax.random.key(0), xs, compute_flops=True, compute_vjp_flops=True
    )
    assert "vjp_flops" in table
