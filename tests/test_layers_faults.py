"""Layers that once gave a wrong answer, or an error where there is an answer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import scanrnn
from scanrnn import cells

D, H, T = 3, 5, 7
XS = jnp.asarray(np.random.default_rng(0).normal(size=(2, T, D)))
X = XS[0, 0]
close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)


def rngs(seed=0):
    return nnx.Rngs(seed)


def flags(*values):
    return jnp.array([values, values], bool)


@pytest.mark.parametrize(
    "cell, draws",
    [
        ([cells.lstm(), cells.zoneout(cells.lstm(), h=0.5)], True),
        ([cells.dropout(cells.lstm(), input=0.0)] * 2, False),
    ],
    ids=["the second layer is noisy", "rates of zero"],
)
def test_noise_is_asked_of_each_layer_with_its_own_inputs(cell, draws):
    rnn = scanrnn.nnx.RNN(cell, D, H, rngs=rngs())
    noisy, quiet = rnn(XS, rngs=rngs(1)), rnn(XS, deterministic=True)
    assert bool(jnp.any(noisy != quiet)) is draws
    twin = scanrnn.linen.RNN(cell, features=H)
    params = twin.init(jax.random.key(0), XS)
    key = {"dropout": jax.random.key(1)}
    noisy = twin.apply(params, XS, deterministic=False, rngs=key)
    quiet = twin.apply(params, XS, deterministic=True)
    assert bool(jnp.any(noisy != quiet)) is draws


@pytest.mark.parametrize("name", ["ConvGRU", "ConvLSTM"])
def test_images_of_other_lengths_run_side_by_side(name):
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3, 3, H)))
    call = {"seq_lengths": jnp.array([4, 2]), "zero_padding": True}
    call["resets"] = jnp.array([[0, 0, 1, 0]] * 2, bool)
    both = (
        getattr(scanrnn.nnx, name)(H, H, num_layers=2, wavefront=w, rngs=rngs())
        for w in (True, False)
    )
    close(*(rnn(images, **call) for rnn in both))


def test_layers_side_by_side_read_inputs_that_are_wider_than_the_carry():
    options = {"num_layers": 2, "carry_dtype": jnp.bfloat16, "residual": True}
    xs = jnp.asarray(XS @ jnp.ones((D, H)) / 3, jnp.float32)
    both = (
        scanrnn.nnx.GRU(H, H, **options, wavefront=w, rngs=rngs())
        for w in (True, False)
    )
    close(*(rnn(xs) for rnn in both))


@pytest.mark.parametrize("option", ["bidirectional", "reverse"])
def test_reset_parts_the_same_steps_in_both_directions(option):
    rnn = scanrnn.nnx.GRU(D, H, **{option: True}, rngs=rngs())
    parted = rnn(XS, segment_ids=jnp.array([[1, 1, 2, 2, 2, 3, 3]] * 2))
    close(rnn(XS, resets=flags(0, 0, 1, 0, 0, 1, 0)), parted)
    assert jnp.any(rnn(XS) != parted)


def one_by_one(rnn, steps):
    """The carry after some steps, each pair a number and whether a sequence starts."""
    carry = None
    for t, starts in steps:
        carry = None if starts else carry
        carry, _ = rnn(XS[:, t : t + 1], initial_carry=carry, return_carry=True)
    return carry.h


@pytest.mark.parametrize(
    "call, steps",
    [
        (
            {"mask": flags(1, 1, 0, 1, 1, 0, 0), "resets": flags(0, 0, 1, 0, 0, 1, 0)},
            [(0, 0), (1, 0), (3, 1), (4, 0)],
        ),
        (
            {
                "seq_lengths": jnp.array([5, 5]),
                "segment_ids": jnp.array([[1, 1, 1, 2, 2, 3, 3]] * 2),
            },
            [(3, 1), (4, 0)],
        ),
    ],
    ids=["mask", "lengths"],
)
def test_steps_that_do_not_count_leave_the_carry_as_it_is(call, steps):
    """A sequence that starts at such a step starts at the next one that counts."""
    rnn = scanrnn.nnx.GRU(D, H, rngs=rngs())
    carry, _ = rnn(XS, return_carry=True, **call)
    close(carry.h, one_by_one(rnn, steps))


@pytest.mark.parametrize("flax", [False, True], ids=["RNNCell", "LSTMCell"])
def test_deterministic_is_said_by_the_cell_or_by_the_call(flax):
    if flax:
        cell = scanrnn.nnx.LSTMCell(D, H, recurrent_dropout=0.5, rngs=rngs())
    else:
        noisy = cells.lstm(recurrent_dropout=0.5)
        cell = scanrnn.nnx.RNNCell(noisy, D, H, rngs=rngs())
    rnn = scanrnn.nnx.RNN(cell)
    quiet = nnx.RNN(cell)
    with pytest.raises(ValueError, match="RNN: rngs is None, but there is"):
        rnn(XS)
    noisy = rnn(XS, rngs=rngs(1))
    assert jnp.all(noisy == rnn(XS, rngs=rngs(1)))
    cell.deterministic = True
    close(rnn(XS, rngs=rngs(1)), quiet(XS))
    cell.deterministic = False
    close(rnn(XS, deterministic=True), rnn(XS[:, ::-1], reverse=True, keep_order=True,
                                           deterministic=True)[:, ::-1])  # fmt: skip
    assert jnp.any(noisy != rnn(XS, deterministic=True))


def test_noise_of_a_cell_with_flaxs_name_is_the_same_in_all_steps():
    """A mask for each step would drop other features of h at each step."""
    cell = scanrnn.nnx.SimpleCell(D, 400, recurrent_dropout=0.5, rngs=rngs())
    cell.dense_h.kernel[...] = jnp.eye(400, dtype="float32") / 1000
    cell.dense_i.kernel[...] = jnp.ones((D, 400), "float32")
    ys = scanrnn.nnx.RNN(cell)(jnp.ones((1, T, D), "float32") / 10, rngs=rngs(1))
    kept = ys[0, 1:] > ys[0, 0]
    assert 100 < int(kept[0].sum()) < 300
    assert jnp.all(kept == kept[0])


@pytest.mark.parametrize("flax", [False, True], ids=["RNNCell", "LSTMCell"])
def test_linen_deterministic_is_said_by_the_cell_or_by_the_call(flax):
    if flax:
        make = functools.partial(scanrnn.linen.LSTMCell, H, recurrent_dropout=0.5)
    else:
        noisy = cells.lstm(recurrent_dropout=0.5)
        make = functools.partial(scanrnn.linen.RNNCell, noisy, H)
    split = {"params": False, "dropout": True}
    rnn = scanrnn.linen.RNN(make(), split_rngs=split)
    said = scanrnn.linen.RNN(make(deterministic=True), split_rngs=split)
    params = said.init(jax.random.key(0), XS)
    quiet = nn.RNN(make(deterministic=True)).apply(_as_flax(params), XS)
    close(said.apply(params, XS), quiet)
    close(rnn.apply(params, XS, deterministic=True), quiet)
    key = {"dropout": jax.random.key(1)}
    noisy = rnn.apply(params, XS, deterministic=False, rngs=key)
    assert jnp.any(noisy != quiet)


def _as_flax(params):
    """The parameters of our layer by the names of Flax's layer."""
    found = params["params"]
    return {"params": {"cell": found.get("cell", found)}}


@pytest.mark.parametrize("streams", [{"default": 0}, {"dropout": 0}], ids=str)
def test_rngs_of_a_flax_cell_draw_no_carry_that_is_given(streams):
    rnn = scanrnn.nnx.RNN(nnx.GRUCell(D, H, rngs=rngs()))
    zeros, given = jnp.zeros((2, H), jnp.float32), nnx.Rngs(**streams)
    xs = XS.astype("float32")
    close(rnn(xs, initial_carry=zeros, rngs=given), rnn(xs))
    close(rnn(xs, rngs=given), rnn(xs))


def test_dropout_scales_whole_numbers():
    cell = cells.dropout(cells.elman(), input=0.2)
    params = cell.init(jax.random.key(0), D, H)
    xs = jnp.ones((1, D), int)
    noise = {"dropout_input": jnp.full((1, D), 1.25)}
    carry = cell.initial_carry(params, xs)
    close(
        cell.step(params, carry, xs, noise)[1],
        cell.inner.step(params, carry, 1.25 * xs)[1],
    )


@pytest.mark.parametrize(
    "name, where, options",
    [
        ("MultiplicativeLSTM", "recurrent_kernel_m", {}),
        ("MultiplicativeLSTM", "kernel_m", {}),
        ("LSTM", "projection", {"projection": 2}),
    ],
)
def test_sharding_reaches_every_matrix_of_a_family(name, where, options):
    said = {
        f"{family}_metadata": {"family": family}
        for family in ("kernel", "recurrent_kernel", "bias")
    }
    rnn = getattr(scanrnn.nnx, name)(D, 4, **options, **said, rngs=rngs())
    family = rnn.layers[0][where].get_metadata()["family"]
    assert family == ("recurrent_kernel" if "recurrent" in where else "kernel")


@pytest.mark.parametrize("cell", [cells.mgu(), cells.conv_lstm(kernel_size=3)])
def test_scheme_flax_has_the_forget_bias_of_flaxs_cell(cell):
    bias = cell.init(jax.random.key(0), D, H, scheme="flax")["bias"]
    at = cell.gates.index("f")
    ones = bias.reshape(len(cell.gates), H)[at]
    assert bool((ones == 1).all()) and float(bias.sum()) == H
    torch = cell.init(jax.random.key(0), D, H, scheme="torch")["bias"]
    assert float(jnp.abs(torch).max()) <= 2 * H**-0.5


@pytest.mark.parametrize(
    "cell",
    [
        cells.mgu(use_bias=False),
        cells.mgu(norm="fastrnns"),
        cells.conv_lstm(kernel_size=3, use_bias=False),
    ],
    ids=["mgu", "mgu with a norm", "conv_lstm"],
)
def test_scheme_flax_needs_no_bias(cell):
    assert "bias" not in cell.init(jax.random.key(0), D, H, scheme="flax")


@pytest.mark.parametrize("name", ["MLSTM", "RGLRU", "RHN", "SRU"])
def test_layers_of_both_kinds_leave_out_biases(name):
    rnn = getattr(scanrnn.nnx, name)(4, 4, use_bias=False, rngs=nnx.Rngs(0))
    layer = getattr(scanrnn.linen, name)(4, use_bias=False)
    params = layer.init(jax.random.key(0), jnp.ones([2, 3, 4]))["params"]
    for tree in (dict(rnn.layers[0]), params):
        assert "kernel" in str(jax.tree.structure(tree))
        assert "bias" not in str(jax.tree.structure(tree))


@pytest.mark.parametrize("name", ["deltanet", "elman", "gla", "indrnn", "lru", "rwkv7"])
def test_chrono_is_refused_by_cells_without_such_gates(name):
    cell = getattr(cells, name)()
    with pytest.raises(ValueError, match=f"{name}: .*no gate with a bias that keeps"):
        cell.init(jax.random.key(0), 4, 4, scheme=cells.chrono(10))


def test_chrono_draws_the_spans_of_a_recurrent_highway():
    bias = cells.rhn(3).init(jax.random.key(0), D, H, scheme=cells.chrono(10))["bias"]
    spans = -bias[:, H:]
    assert bool((spans >= 0).all()) and bool((spans <= jnp.log(9)).all())
    assert len(jnp.unique(spans)) == H


class Counting(nnx.RNNCellBase):
    """A cell whose carry has no batch axes."""

    def __call__(self, carry, inputs):
        return carry + 1, inputs

    num_feature_axes = 1


def test_carries_without_batch_axes_are_refused_by_name():
    rnn = scanrnn.nnx.RNN(Counting())
    with pytest.raises(ValueError, match="RNN: the cell returned an array of shape"):
        rnn(XS, initial_carry=0.0, return_all_carries=True)


def test_lengths_of_a_small_type_do_not_overflow():
    rnn = scanrnn.nnx.RNN(cells.gru(), D, H, rngs=rngs())
    xs = jnp.ones((1, 255, D))
    options = {"reverse": True, "return_all_carries": True, "include_initial": True}
    small, wide = (
        rnn(xs, seq_lengths=np.array([255], dtype), **options)
        for dtype in (np.uint8, np.int32)
    )
    jax.tree.map(np.testing.assert_array_equal, small, wide)


def test_option_with_the_value_of_its_default_is_none():
    options = {"activation_fn": nnx.relu, "recurrent_dropout": float("0")}
    cell = scanrnn.nnx.LSTMCell(D, H, **options, rngs=rngs())
    assert cell(cell.initialize_carry(X.shape, rngs()), X)[1].shape == (H,)


def test_layers_side_by_side_take_an_empty_sequence():
    rnn = scanrnn.nnx.LSTM(D, D, num_layers=2, wavefront=True, rngs=rngs())
    assert rnn(XS[:, :0]).shape == (2, 0, D)


@pytest.mark.parametrize(
    "cell, field", [(cells.slstm(), "c"), (cells.slstm(), "n"), (cells.mlstm(), "C")]
)
def test_zoneout_refuses_a_field_whose_scale_changes(cell, field):
    """Such a field is divided by e^m, and an old value by an old e^m."""
    with pytest.raises(ValueError, match=f"zoneout: the field '{field}' has a scale"):
        cells.zoneout(cells.residual(cell), **{field: 0.5})


def test_residual_adds_the_input_before_dropout():
    rnn = scanrnn.nnx.GRU(H, H, num_layers=2, residual=True, dropout=0.5, rngs=rngs())
    for weights in rnn.layers:
        for name in weights:
            weights[name][...] = jnp.zeros_like(weights[name][...])
    inputs = jnp.ones([2, T, H])
    assert (rnn(inputs, rngs=rngs(1)) == inputs).all()


def test_rwkv7_normalises_what_is_read_and_not_the_bonus():
    cell, plain = cells.rwkv7(norm=True), cells.rwkv7()
    params = cell.init(jax.random.key(0), D, H) | {"bonus": jnp.ones(H)}
    bare = {k: v for k, v in params.items() if not k.startswith("norm")}
    carry = cell.initial_carry(params, X)
    read = plain.step(bare | {"bonus": jnp.zeros(H)}, carry, X)[1]
    bonus = plain.step(bare, carry, X)[1] - read
    normal = jax.nn.standardize(read, epsilon=64e-5)
    close(cell.step(params, carry, X)[1], normal + bonus)


def test_layers_of_several_outputs_do_not_run_side_by_side():
    @dataclasses.dataclass(frozen=True)
    class Two(cells.Cell):
        def init(self, key, in_features, hidden_features, dtype=jnp.float32):
            return {"kernel": jnp.ones([in_features, hidden_features], dtype)}

        def initial_carry(self, params, x, dtype=None):
            return jnp.zeros_like(x, dtype)

        def step(self, params, carry, x):
            carry = jnp.tanh(x @ params["kernel"] + carry)
            return carry, (carry, carry)

    rnn = scanrnn.nnx.RNN(Two(), H, H, num_layers=2, wavefront=True, rngs=rngs())
    with pytest.raises(TypeError, match="the cell of layer 0 gives a tuple, want one"):
        rnn(jnp.ones([2, T, H]))
