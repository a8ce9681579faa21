"""Wrong input to the layers: the message names what came and what was wanted."""

import functools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from scanrnn import cells
from scanrnn.nnx import GRU, LSTM, RNN, Bidirectional, Elman

T, D, H = 4, 3, 5
EIGHT = jnp.float8_e4m3fn
every_layer = pytest.mark.parametrize("layer", [Elman, LSTM, GRU])


def raises(kind, *words):
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, words)))


@every_layer
@pytest.mark.parametrize(
    "options, kind, words",
    [
        ({"num_layers": 0}, ValueError, ["num_layers", "at least 1", "0"]),
        ({"num_layers": 1.5}, TypeError, ["num_layers", "int", "1.5"]),
        ({"in_features": 0}, ValueError, ["in_features", "at least 1", "0"]),
        ({"hidden_features": None}, TypeError, ["hidden_features", "int", "None"]),
        ({"rngs": None}, TypeError, ["rngs", "None", "nnx.Rngs(0)"]),
        ({"rngs": 0}, TypeError, ["rngs", "got 0", "nnx.Rngs(0)"]),
        ({"norm": "batch"}, ValueError, ["norm='batch'", "None, 'ba2016'"]),
        ({"integration": "mi"}, ValueError, ["integration='mi'", "'multiplicative'"]),
        ({"dtype": int}, TypeError, ["dtype", "int", "floating"]),
        ({"param_dtype": int}, TypeError, ["param_dtype", "floating", "int"]),
        ({"carry_dtype": "int8"}, TypeError, ["carry_dtype", "floating", "int8"]),
        ({"implementation": "fast"}, ValueError, ["implementation", "'fast'"]),
        ({"hidden": 3}, TypeError, ["hidden"]),
        ({"param_dtype": EIGHT}, TypeError, ["param_dtype", "16 bits", "float8"]),
        ({"carry_dtype": EIGHT}, TypeError, ["carry_dtype", "16 bits", "float8"]),
        ({"carry_dtype": "8bit"}, TypeError, ["carry_dtype", "floating", "'8bit'"]),
        ({"norm": np.array(["a", "b"])}, ValueError, ["norm=array", "'ba2016'"]),
        ({"kernel_init": 3}, TypeError, ["kernel_init", "function", "got 3"]),
        ({"bias_init": "zeros"}, TypeError, ["bias_init", "function", "'zeros'"]),
        ({"dropout": "0.1"}, TypeError, ["dropout", "a number such as 0.5", "'0.1'"]),
        ({"unroll": 2.5}, TypeError, ["unroll", "bool or an int", "2.5"]),
        ({"unroll": -1}, ValueError, ["unroll", "at least 0", "-1"]),
        (
            {"implementation": ["planned"]},
            ValueError,
            ["implementation=['planned']", "None, 'planned', 'scan'"],
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_constructor_refuses(layer, options, kind, words):
    sizes = {"in_features": D, "hidden_features": H, "rngs": nnx.Rngs(0)}
    with raises(kind, *words):
        layer(**{**sizes, **options})


@pytest.mark.parametrize("bias", ["a"])
def test_constructor_refuses_a_forget_bias(bias):
    with raises(TypeError, "forget_bias", "number", repr(bias)):
        LSTM(D, H, forget_bias=bias, rngs=nnx.Rngs(0))


@every_layer
@pytest.mark.parametrize(
    "shape, words",
    [
        ((D,), ["inputs", "(3,)", "[T, D]"]),
        ((), ["inputs", "()", "[T, D]"]),
        ((2, T, D + 1), ["inputs", "4 features", "(2, 4, 4)", "in_features=3"]),
    ],
)
def test_call_refuses_inputs_of_the_wrong_shape(layer, shape, words):
    with raises(ValueError, *words):
        layer(D, H, rngs=nnx.Rngs(0))(jnp.ones(shape))


@pytest.mark.parametrize("inputs", [None, "ab", {"x": jnp.ones([T, D])}, [[1], []]])
def test_call_refuses_inputs_that_are_no_array(inputs):
    with raises(TypeError, "inputs must be one array", type(inputs).__name__):
        LSTM(D, H, rngs=nnx.Rngs(0))(inputs)


def zeros(*shape):
    return jnp.zeros(shape, jnp.float32)


@pytest.mark.parametrize(
    "carry, kind, words",
    [
        ((zeros(2, H), zeros(2, H)), TypeError, ["initial_carry", "LSTMCarry"]),
        (zeros(2, H), TypeError, ["initial_carry", "LSTMCarry"]),
        (cells.GRUCarry(zeros(2, H)), TypeError, ["GRUCarry", "want", "LSTMCarry"]),
        (
            cells.LSTMCarry(zeros(2, H), zeros(3, H)),
            ValueError,
            ["initial_carry", ".c", "(3, 5)", "want (2, 5)"],
        ),
        (
            cells.LSTMCarry(zeros(2, H).astype(jnp.bfloat16), zeros(2, H)),
            TypeError,
            ["initial_carry", ".h", "bfloat16", "float32", "carry_dtype"],
        ),
    ],
    ids=["tuple", "array", "type", "shape", "dtype"],
)
def test_call_refuses_an_initial_carry(carry, kind, words):
    rnn = LSTM(D, H, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
    with raises(kind, *words):
        rnn(jnp.ones([2, T, D]), initial_carry=carry)


def test_call_refuses_the_carry_of_one_layer_for_two():
    rnn = LSTM(D, H, num_layers=2, rngs=nnx.Rngs(0))
    with raises(TypeError, "initial_carry", "LSTMCarry", "one of its 2 parts"):
        rnn(jnp.ones([2, T, D]), initial_carry=cells.LSTMCarry(*[zeros(2, H)] * 2))


def test_call_refuses_lengths_and_wrong_rngs():
    rnn = LSTM(D, H, rngs=nnx.Rngs(0))
    xs = jnp.ones([2, T, D])
    for values, kind, words in (
        ([3, T + 1], ValueError, ["values from 3 to", f"want 0 to {T}"]),
        ([-1, 2], ValueError, ["values from -1 to"]),
        ([1, 2, 3], ValueError, ["shape (3,)", "want (2,)", "batch axes"]),
        ([1.0, 2.0], TypeError, ["dtype float", "integers", "mask="]),
        ([True, False], TypeError, ["dtype bool", "integers", "mask="]),
    ):
        with raises(kind, "RNN: seq_lengths", *words):
            rnn(xs, seq_lengths=jnp.array(values))
    for name, value, kind, words in (
        ("mask", jnp.ones([2, T]), TypeError, ["dtype float", "mask != 0"]),
        ("mask", jnp.ones([T, 2], bool), ValueError, [f"({T}, 2)", f"(2, {T})"]),
        ("resets", jnp.ones([2, T], int), TypeError, ["dtype int", "resets != 0"]),
        ("segment_ids", jnp.ones([2, T]), TypeError, ["dtype float", "integers"]),
        ("segment_ids", jnp.ones([2, 1], int), ValueError, ["(2, 1)"]),
    ):
        with raises(kind, f"RNN: {name}", *words):
            rnn(xs, **{name: value})
    with raises(TypeError, "rngs", "got 0", "nnx.Rngs(0)"):
        rnn(jnp.ones([2, T, D]), rngs=0)


@pytest.mark.parametrize(
    "carry, kind, words",
    [
        (
            zeros(3),
            TypeError,
            ["initial_carry", "float32[3]", "want", "(float32[2,5], float32[2,5])"],
        ),
        (
            [zeros(2, H), zeros(2, H)],
            TypeError,
            ["initial_carry", "[float32[2,5], ", "(float32[2,5], "],
        ),
        ((zeros(7, H), zeros(2, H)), ValueError, ["initial_carry[0]", "(7, 5)"]),
        ((zeros(2, H), zeros(H)), ValueError, ["initial_carry[1]", "want (2, 5)"]),
    ],
    ids=["array", "list", "batch", "vector"],
)
def test_call_refuses_an_initial_carry_of_a_flax_cell(carry, kind, words):
    rnn = RNN(nnx.LSTMCell(D, H, rngs=nnx.Rngs(0)))
    with raises(kind, *words):
        rnn(jnp.ones([2, T, D]), initial_carry=carry)


def test_call_refuses_inputs_of_the_wrong_features_for_a_flax_cell():
    rnn = RNN(nnx.LSTMCell(D, H, rngs=nnx.Rngs(0)))
    with raises(ValueError, "inputs has 2 features", "(2, 4, 2)", "in_features=3"):
        rnn(jnp.ones([2, T, 2]))


class Summing(nnx.RNNCellBase):
    """A cell without a first carry of its own: the user must give one."""

    num_feature_axes = 1

    def __call__(self, carry, x):
        return carry + x, carry + x


def test_flax_cell_may_have_no_carry_of_its_own():
    xs, carry = jnp.ones([2, T, D]), jnp.ones([2, D])
    assert (RNN(Summing())(xs, initial_carry=carry) == 1 + jnp.cumsum(xs, axis=1)).all()


def test_layer_refuses_what_is_no_cell():
    """The cell is checked first, because all other arguments depend on it."""
    inside = nnx.GRUCell(D, H, rngs=nnx.Rngs(0))
    for cell, words in (
        ("lstm", ["got 'lstm'"]),
        (cells.lstm, ["got the function lstm", "write lstm(...)"]),
        (lambda carry, x: (carry, x), ["the function <lambda>", "scanrnn.scan takes"]),
        (functools.reduce, ["the function reduce", "scanrnn.scan takes a step"]),
        (nnx.LSTMCell, ["got the class LSTMCell", "write LSTMCell(...)"]),
        (linen.LSTMCell(H), ["LSTMCell of flax.linen", "scanrnn.linen.RNN"]),
        (nnx.Linear(D, H, rngs=nnx.Rngs(0)), ["Linear, a module", "no recurrent"]),
        ([inside, inside], ["a list with GRUCell of flax.nnx", "a layer of each"]),
    ):
        with raises(TypeError, "cell", "scanrnn.cells.lstm()", "RNNCellBase", *words):
            RNN(cell)
    with raises(TypeError, "in_features must be an int, got None"):
        RNN(cells.lstm(), rngs=nnx.Rngs(0))


def test_call_refuses_the_initial_carry_among_carries_that_are_not_asked_for():
    with raises(ValueError, "include_initial=True", "return_all_carries=True too"):
        LSTM(D, H, rngs=nnx.Rngs(0))(jnp.ones([2, T, D]), include_initial=True)


@pytest.mark.parametrize(
    "options",
    [
        {"in_features": D, "hidden_features": H},
        {"num_layers": 2},
        {"residual": True},
        {"param_dtype": jnp.bfloat16},
        {"carry_dtype": jnp.float32},
        {"wavefront": True},
        {"kernel_init": nnx.initializers.ones},
    ],
    ids=lambda options: "-".join(options),
)
def test_layer_refuses_what_a_flax_cell_has_in_it(options):
    cell = nnx.GRUCell(D, H, rngs=nnx.Rngs(0))
    with raises(ValueError, *options, "GRUCell"):
        RNN(cell, **options)


def test_layer_refuses_an_axis_of_a_state():
    cell = nnx.GRUCell(D, H, rngs=nnx.Rngs(0))
    with raises(ValueError, "state_axes has 0", "nnx.Carry or None"):
        RNN(cell, state_axes={nnx.BatchStat: 0, ...: None})


def test_layer_refuses_lists_that_do_not_fit():
    pair = [cells.lstm(), cells.gru()]
    with raises(ValueError, "cell has 2 entries", "each of the 3 layers"):
        RNN(pair, D, H, num_layers=3, rngs=nnx.Rngs(0))
    with raises(ValueError, "hidden_features has 2 entries", "the 1 layers"):
        LSTM(D, [H, H], num_layers=1, rngs=nnx.Rngs(0))
    with raises(ValueError, "hidden_features[1] must be at least 1"):
        LSTM(D, [H, 0], rngs=nnx.Rngs(0))
    with raises(ValueError, "convolutional"):
        both = [cells.conv_lstm(kernel_size=3), cells.lstm()]
        RNN(both, D, H, rngs=nnx.Rngs(0))


def test_rngs_without_the_stream_that_is_needed_are_named():
    with raises(ValueError, "no stream 'params'", "has ['dropout']", "params=0"):
        LSTM(D, H, rngs=nnx.Rngs(dropout=0))
    rnn = LSTM(D, H, recurrent_dropout=0.5, rngs=nnx.Rngs(0))
    with raises(ValueError, "no stream 'dropout'", "has ['params']", "dropout=0"):
        rnn(jnp.ones([2, T, D]), rngs=nnx.Rngs(params=0))


@every_layer
def test_missing_sizes_are_told_by_the_name_of_the_layer(layer):
    with raises(TypeError, f"{layer.__name__}.__init__() missing", "in_features"):
        layer()


@pytest.mark.parametrize(
    "cell", [cells.lstm(), nnx.LSTMCell(D, H, rngs=nnx.Rngs(0))], ids=["ours", "flax"]
)
def test_bidirectional_refuses_a_cell_in_place_of_a_layer(cell):
    layer = LSTM(D, H, rngs=nnx.Rngs(0))
    with raises(TypeError, "backward_rnn is a cell, LSTM", "RNN(cell, ...)"):
        Bidirectional(layer, cell)(jnp.ones([2, T, D]))
