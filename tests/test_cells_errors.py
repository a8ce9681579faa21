"""Wrong input to the cells: the message names what came and what was wanted."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scanrnn import cells
from tests.cell_table import CELLS, H, draw

every_family = pytest.mark.parametrize("name", ["elman", "lstm", "gru"])


# Cells that check this option by themselves.
UNBIASED = "gated_deltanet gla mamba2 mingru minlstm mlstm qrnn rglru rhn rwkv7 sru"


def raises(kind, *words):
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, words)))


@every_family
@pytest.mark.parametrize(
    "option, value, kind, words",
    [
        ("norm", "layer", ValueError, ["norm='layer'", "None, 'ba2016'"]),
        ("norm", True, ValueError, ["norm=True", "'ba2016'"]),
        ("norm", np.array(["a", "b"]), ValueError, ["norm=array", "'ba2016'"]),
        ("integration", None, ValueError, ["integration=None", "'multiplicative'"]),
        ("dtype", jnp.int8, TypeError, ["dtype", "int8", "jnp.bfloat16"]),
        ("dtype", jnp.float8_e4m3fn, TypeError, ["dtype", "float8", "jnp.bfloat16"]),
        ("dtype", "half a float", TypeError, ["dtype", "half a float", "floating"]),
    ],
)
def test_unknown_option_is_refused(name, option, value, kind, words):
    with raises(kind, *words):
        getattr(cells, name)(**{option: value})


def test_unknown_activation_is_refused():
    with raises(ValueError, "elman", "activation='gelu'", "'tanh', 'relu'"):
        cells.elman("gelu")


@pytest.mark.parametrize("value", ["1", "a", [1.0, 2.0]])
def test_forget_bias_that_is_no_number_is_refused(value):
    with raises(TypeError, "lstm: forget_bias must be a number", repr(value)):
        cells.lstm(forget_bias=value)


@pytest.mark.parametrize(
    "make, option",
    [
        (cells.lstm, "coupled"),
        (cells.lstm, "peephole"),
        (cells.gru, "use_bias"),
        (cells.elman, "mask_per_gate"),
        (cells.conv_gru, "use_bias"),
        (cells.conv_lstm, "peephole"),
        (cells.rhn, "coupled"),
        (cells.sru, "peephole"),
        (cells.sru, "scaled"),
        *((getattr(cells, name), "use_bias") for name in UNBIASED.split()),
        (cells.rwkv7, "norm"),
        (functools.partial(cells.dropout, cells.gru()), "same_mask"),
    ],
)
def test_flag_that_is_a_text_is_refused(make, option):
    with raises(TypeError, f"{option} must be True or False, got 'False'"):
        make(**{option: "False"})


@pytest.mark.parametrize(
    "name, option",
    [
        ("rhn", "transfer_bias"),
        ("sru", "highway_bias"),
        ("qrnn", "forget_bias"),
        ("minlstm", "forget_bias"),
        ("mlstm", "forget_bias"),
    ],
)
def test_a_start_of_a_bias_that_is_left_out_is_refused(name, option):
    make = functools.partial(getattr(cells, name), use_bias=False)
    assert make() == make(**{option: None if name != "sru" else 0})
    with raises(ValueError, f"{name}: {option}=1.0 is the start", "use_bias=False"):
        make(**{option: 1})


def test_weight_drop_without_a_weight_to_drop_is_refused():
    with raises(ValueError, "weight_drop: names is empty"):
        cells.weight_drop(cells.lstm(), 0.5, names=())
    cell = cells.weight_drop(cells.lstm(), 0.5, names="recurent")
    with raises(ValueError, "no parameter 'recurent'", "recurrent_kernel"):
        cell.init(jax.random.key(0), 3, 4)


@pytest.mark.parametrize(
    "name, option",
    [
        ("mgu", "forget_bias"),
        ("ugrnn", "forget_bias"),
        ("multiplicative_lstm", "forget_bias"),
        ("qrnn", "forget_bias"),
        ("rhn", "transfer_bias"),
        ("sru", "highway_bias"),
        ("indrnn", "longest"),
    ],
)
def test_option_that_is_no_number_is_refused(name, option):
    with raises(TypeError, f"{name}: {option} must be a number", "'1'"):
        getattr(cells, name)(**{option: "1"})


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("mgu", {"dialect": "keras"}, ["dialect='keras'", "'flax', 'zhou2016'"]),
        ("mgu", {"norm": "praxis"}, ["W x + U h", "'ba2016'", "'zhou2016'"]),
        (
            "mgu",
            {"dialect": "zhou2016", "norm": "ba2016"},
            ["jointly", "'praxis'", "dialect='flax'"],
        ),
        ("indrnn", {"activation": "gelu"}, ["activation='gelu'", "'relu', 'tanh'"]),
        ("indrnn", {"longest": 0}, ["longest=0", "at least 1"]),
        ("indrnn", {"norm": "ba2016"}, ["independent", "norm=None", "inputs"]),
        ("indrnn", {"heads": 2}, ["heads=2", "leave heads=1"]),
        ("multiplicative_lstm", {"heads": 2}, ["heads must be 1", "got 2"]),
        ("multiplicative_lstm", {"dialect": "x"}, ["'krause2017', 'krause2016'"]),
        ("rhn", {"depth": 0}, ["depth must be at least 1", "0"]),
        ("sru", {"activation": "gelu"}, ["'identity', 'tanh', 'relu'"]),
        ("qrnn", {"window": 3}, ["window=3", "1 or 2", "convolution"]),
        ("qrnn", {"pooling": "max"}, ["pooling='max'", "'f', 'fo', 'ifo'"]),
        (
            "qrnn",
            {"pooling": "ifo", "dialect": "pytorch-qrnn"},
            ["pooling='ifo'", "use dialect='bradbury2016'"],
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(name, options, words):
    with raises(ValueError, name, *words):
        getattr(cells, name)(**options)


def test_sru_params_fit_one_relation_of_sizes():
    wide, square = CELLS["sru"], CELLS["sru-square"]
    params, xs, carry = draw(wide)
    del params["skip_kernel"]
    with raises(ValueError, "sru", "want", "skip_kernel"):
        wide.cell.step(params, carry, xs[0])
    params, xs, carry = draw(square)
    with raises(ValueError, "sru", "skip_kernel", "want"):
        extra = {**params, "skip_kernel": np.eye(H)}
        square.cell.step(extra, carry, xs[0])


@every_family
@pytest.mark.parametrize(
    "option", ["kernel_init", "recurrent_kernel_init", "bias_init"]
)
def test_init_refuses_an_initializer_that_is_no_function(name, option):
    with raises(TypeError, f"{name}: {option} must be a function", "got 3"):
        getattr(cells, name)().init(jax.random.key(0), 3, H, **{option: 3})


@every_family
@pytest.mark.parametrize(
    "sizes, kind, words",
    [
        ((0, H), ValueError, ["in_features", "at least 1", "0"]),
        ((3, -1), ValueError, ["hidden_features", "at least 1", "-1"]),
        ((3.0, H), TypeError, ["in_features", "int", "3.0"]),
        ((3, True), TypeError, ["hidden_features", "int", "True"]),
        ((3, None), TypeError, ["hidden_features", "int", "None"]),
    ],
)
def test_init_refuses_bad_sizes(name, sizes, kind, words):
    with raises(kind, name, *words):
        getattr(cells, name)().init(jax.random.key(0), *sizes)


@every_family
@pytest.mark.parametrize(
    ("key", "got"),
    [(0, "got 0"), (None, "got None"), (np.ones(2), "an array of float64")],
)
def test_what_is_no_key_is_refused(name, key, got):
    cell = getattr(cells, name)()
    with raises(TypeError, f"{name}: key must be", "jax.random.key(0)", got):
        cell.init(key, 3, H)
    if key is not None:  # without one nothing is random
        params, xs, _ = draw(CELLS[name])
        with raises(TypeError, "prepare: key must be", "jax.random.key(0)", got):
            cell.prepare(params, xs, key)


@every_family
def test_init_refuses_params_of_integers(name):
    with raises(TypeError, name, "dtype", "int32", "floating"):
        getattr(cells, name)().init(jax.random.key(0), 3, H, jnp.int32)


@every_family
def test_eight_bit_params_inputs_and_carry_are_refused(name):
    eight, (params, xs, carry) = jnp.float8_e4m3fn, draw(CELLS[name])
    cell = getattr(cells, name)()
    with raises(TypeError, name, "dtype", "float8", "16 bits"):
        cell.init(jax.random.key(0), 3, H, eight)
    with raises(TypeError, name, "dtype", "float8", "16 bits"):
        cell.initial_carry(params, xs[0], eight)
    with raises(TypeError, name, "x has dtype float8", "16 bits"):
        cell.step(params, carry, xs[0].astype(eight))
    with raises(TypeError, name, "carry.h has dtype float8", "16 bits"):
        cell.step(params, carry._replace(h=carry.h.astype(eight)), xs[0])


@every_family
@pytest.mark.parametrize("call", ["step", "initial_carry"])
def test_wrong_in_features_is_refused(name, call):
    params, xs, carry = draw(CELLS[name])
    x = xs[0, :, :2]
    arguments = (params, carry, x) if call == "step" else (params, x)
    with raises(ValueError, name, "x has shape (2, 2)", "(..., 3)", "in_features=3"):
        getattr(getattr(cells, name)(), call)(*arguments)


@every_family
def test_params_of_another_cell_are_refused(name):
    params, xs, carry = draw(CELLS[f"{name}-norm"])
    with raises(ValueError, name, "norm_x", "want", "bias", "same options"):
        getattr(cells, name)().step(params, carry, xs[0])
    with raises(TypeError, name, "dict", "list"):
        getattr(cells, name)().step([], carry, xs[0])


@every_family
def test_params_of_the_wrong_shape_or_dtype_are_refused(name):
    params, xs, carry = draw(CELLS[name])
    step = getattr(cells, name)().step
    with raises(ValueError, name, "params['bias'] has shape (1,)", "want"):
        step({**params, "bias": params["bias"][:1]}, carry, xs[0])
    with raises(TypeError, name, "params['bias'] has dtype int", "floating"):
        step({**params, "bias": params["bias"].astype(int)}, carry, xs[0])


@every_family
def test_carry_of_another_type_is_refused(name):
    params, xs, carry = draw(CELLS[name])
    fields = ", ".join(carry._fields)
    with raises(TypeError, name, f"{type(carry).__name__}({fields})", "got tuple"):
        getattr(cells, name)().step(params, tuple(carry), xs[0])


@every_family
def test_carry_of_the_wrong_shape_or_dtype_is_refused(name):
    params, xs, carry = draw(CELLS[name])
    step = getattr(cells, name)().step
    with raises(ValueError, name, "carry.h has shape (1, 4)", "want (2, 4)"):
        step(params, carry._replace(h=carry.h[:1]), xs[0])
    with raises(TypeError, name, "carry.h has dtype int", "floating"):
        step(params, carry._replace(h=carry.h.astype(int)), xs[0])


@every_family
def test_complex_input_is_refused(name):
    params, xs, carry = draw(CELLS[name])
    with raises(TypeError, name, "x has dtype complex", "real"):
        getattr(cells, name)().step(params, carry, xs[0] + 1j)


def test_residual_refuses_what_cannot_be_added():
    cell = cells.residual(cells.gru())
    with raises(ValueError, "residual", "in_features=3", "features=4"):
        cell.init(jax.random.key(0), 3, 4)
    params, xs, carry = draw(CELLS["gru"])
    with raises(ValueError, "residual", "(2, 3)", "(2, 4)"):
        cell.step(params, carry, xs[0])
    with raises(TypeError, "residual", "function"):
        cells.residual(cells.gru)
