"""The initial parameters of cells."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scanrnn import cells
from tests.cell_table import ONE_ROW_EACH, H, draw

one_of_each = pytest.mark.parametrize("row", ONE_ROW_EACH)
GATES = {"elman": 1, "lstm": 4, "gru": 3}
every_gated = pytest.mark.parametrize("name", GATES)


def init(cell, in_features, hidden_features, dtype=jnp.float32, **initializers):
    key = jax.random.key(3)
    return cell.init(key, in_features, hidden_features, dtype, **initializers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@one_of_each
def test_init_gives_every_param_in_the_dtype_asked_for(row, dtype):
    params = init(row.cell, row.in_features, H, dtype)
    assert {leaf.dtype for leaf in params.values()} == {jnp.dtype(dtype)}


@every_gated
def test_half_params_are_float32_params_cast(name):
    cell = getattr(cells, name)(norm="ba2016", integration="multiplicative")
    half, wide = init(cell, 3, H, jnp.bfloat16), init(cell, 3, H)
    assert half.keys() == wide.keys()
    for key in wide:
        np.testing.assert_array_equal(half[key], wide[key].astype(jnp.bfloat16))


@every_gated
def test_recurrent_kernel_is_orthogonal_gate_by_gate(name):
    kernel = init(getattr(cells, name)(), 3, H, jnp.float64)["recurrent_kernel"]
    blocks = np.split(kernel, GATES[name], axis=1)
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(H), atol=1e-12)
    assert len({float(block[0, 0]) for block in blocks}) == GATES[name]


@every_gated
def test_kernel_has_the_spread_of_lecun(name):
    kernel = init(getattr(cells, name)(), 400, 100)["kernel"]
    assert abs(np.std(kernel) * np.sqrt(400) - 1) < 0.03


def test_forget_bias_is_the_only_bias_that_starts_off_zero():
    one = [0.0] * H + [1.0] * H + [0.0] * 2 * H
    np.testing.assert_array_equal(init(cells.lstm(), 3, H)["bias"], one)
    two = init(cells.lstm(forget_bias=2), 3, H)["bias"]
    np.testing.assert_array_equal(two, 2 * np.array(one))
    for name in ("elman", "gru"):
        assert not init(getattr(cells, name)(), 3, H)["bias"].any()


@pytest.mark.parametrize(
    "cell, starts",
    [
        (cells.mgu(), [1, 0]),
        (cells.mgu(dialect="zhou2016"), [0, 0]),
        (cells.mgu(dialect="zhou2016", forget_bias=-2), [-2, 0]),
        (cells.ugrnn(forget_bias=2), [2, 0]),
        (cells.multiplicative_lstm(forget_bias=3), [0, 3, 0, 0]),
        (cells.rhn(2, coupled=False), [0, -2, 2]),
        (cells.rhn(3, transfer_bias=-4), [0, -4]),
        (cells.sru(highway_bias=-3), [0, -3]),
        (cells.qrnn(), [0, 1, 0]),
        (cells.qrnn(dialect="pytorch-qrnn"), [0, 0, 0]),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else None,
)
def test_biases_start_where_documented(cell, starts):
    bias = init(cell, 3, H)["bias"]
    wanted = np.broadcast_to(np.repeat(starts, H), bias.shape)
    np.testing.assert_array_equal(bias, wanted)


def test_gates_that_keep_and_that_let_in_are_told_apart():
    scheme = cells.chrono(longest=100)
    for options, sign in (({}, 1), ({"dialect": "zhou2016"}, -1)):
        f, n = np.split(init(cells.mgu(**options), 3, H, scheme=scheme)["bias"], 2)
        assert (sign * f > 0).all()
        assert not n.any()


@pytest.mark.parametrize("longest, most", [(None, 1.0), (1, 2.0), (100, 2**0.01)])
def test_independent_weights_are_uniform_up_to_what_the_steps_bear(longest, most):
    u = init(cells.indrnn(longest=longest), 3, 5000)["recurrent_kernel"]
    assert (u >= 0).all()
    assert (u <= most).all()
    assert abs(np.mean(u) / most - 0.5) < 0.02
    assert abs(np.std(u) / most * np.sqrt(12) - 1) < 0.02
    ones = jax.nn.initializers.ones
    drawn = init(cells.indrnn(), 3, H, recurrent_kernel_init=ones)
    assert (drawn["recurrent_kernel"] == 1).all()


def test_every_layer_of_a_recurrent_highway_is_orthogonal_gate_by_gate():
    kernel = init(cells.rhn(3), 3, H, jnp.float64)["recurrent_kernel"]
    blocks = [block for layer in kernel for block in np.split(layer, 2, axis=1)]
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(H), atol=1e-12)
    assert len({float(block[0, 0]) for block in blocks}) == len(blocks)


@pytest.mark.parametrize(
    "name, dialect, sign",
    [
        ("gru", "cudnn", 1),
        ("gru", "cho2014", 1),
        ("gru", "haiku", -1),
        ("conv_gru", "cudnn", 1),
        ("conv_gru", "ballas2015", -1),
    ],
)
def test_chrono_makes_a_gru_remember(name, dialect, sign):
    """If z multiplies the new value, the cell remembers while z is near zero."""
    cell = getattr(cells, name)(dialect=dialect)
    bias = init(cell, 3, H, scheme=cells.chrono(100))["bias"]
    r, z, n = np.split(bias, 3)
    assert (sign * z > 0).all()
    assert not r.any() and not n.any()


@every_gated
def test_norm_and_integration_start_where_documented(name):
    cell = getattr(cells, name)(norm="ba2016", integration="multiplicative")
    starts = {
        "norm_x": 1,
        "norm_h": 1,
        "norm_c": 1,
        "norm_c_bias": 0,
        "alpha": 1,
        "beta1": 0.5,
        "beta2": 0.5,
        "recurrent_bias": 0,
    }
    params = init(cell, 3, H)
    for key in params.keys() - {"kernel", "recurrent_kernel", "bias"}:
        assert (params[key] == starts[key]).all()


@every_gated
def test_initializers_replace_the_default_ones(name):
    constant = jax.nn.initializers.constant
    params = init(
        cells.residual(getattr(cells, name)()),
        H,
        H,
        kernel_init=constant(2.0),
        recurrent_kernel_init=constant(3.0),
        bias_init=constant(4.0),
    )
    assert (params["kernel"] == 2).all()
    assert (params["recurrent_kernel"] == 3).all()
    assert set(np.unique(params["bias"])) == {4.0, 5.0} if name == "lstm" else {4.0}


@one_of_each
def test_initial_carry_is_zeros_with_the_batch_axes_of_x(row):
    params, xs, carry = draw(row)
    params = {k: v * (not k.startswith("initial_carry")) for k, v in params.items()}
    for x in (xs[0], xs[0, 0], xs):
        zeros = row.cell.initial_carry(params, x * np.nan, jnp.float32)
        assert type(zeros) is type(carry)
        for field, given in zip(zeros, carry, strict=True):
            assert field.shape == (*x.shape[:-1], *given.shape[xs.ndim - 2 :])
            assert field.dtype == jnp.float32
            assert not field.any()


@one_of_each
def test_initial_carry_is_float32_or_wider(row):
    params, xs, _ = draw(row)

    def dtype(params_dtype, x_dtype):
        cast = {k: jnp.asarray(v, params_dtype) for k, v in params.items()}
        carry = row.cell.initial_carry(cast, jnp.asarray(xs[0], x_dtype))
        return carry[0].dtype

    assert dtype("bfloat16", "bfloat16") == jnp.float32
    assert dtype("float32", "int32") == jnp.float32
    assert dtype("float64", "float32") == jnp.float64


def test_sru_gates_get_half_of_their_variance_from_the_input():
    width = 256
    for peephole, gates in ((True, 0.5**0.5), (False, 1.0)):
        kernel = init(cells.sru(peephole=peephole), width, width)["kernel"]
        spread = [float(block.std()) * width**0.5 for block in np.split(kernel, 3, 1)]
        np.testing.assert_allclose(spread, [1, gates, gates], atol=0.02)
    ones = init(cells.sru(), 4, 4, kernel_init=jax.nn.initializers.ones)["kernel"]
    assert (ones == 1).all()
