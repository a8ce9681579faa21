"""The stabiliser of xLSTM: it may change only numbers that would overflow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn import cells
from tests import oracles
from tests.cell_table import CELLS, B, draw
from tests.oracles import xlstm


def run(cell, params, xs):
    step = functools.partial(cell.step, params)
    return scanrnn.scan(step, cell.initial_carry(params, xs[0]), xs)


@pytest.mark.parametrize(
    "name, plain",
    [
        ("slstm", xlstm.slstm_plain),
        ("mlstm", xlstm.mlstm_plain),
        ("mlstm-heads", xlstm.mlstm_plain),
    ],
)
@pytest.mark.parametrize("bias", [-5.0, 0.0, 5.0])
def test_the_stabilised_cell_is_that_of_the_paper(name, plain, bias):
    row = CELLS[name]
    params, xs, carry = draw(row)
    gates = "bias" if name == "slstm" else "gate_bias"
    params[gates] = params[gates] + bias
    zeros = tuple(np.zeros_like(field) for field in carry[:-1])
    last, ys = run(row.cell, params, xs)
    wanted_last, wanted = oracles.run(plain, params, xs, zeros)
    np.testing.assert_allclose(ys, wanted, rtol=1e-10)
    first = 1 if name == "slstm" else 0
    for got, want in zip(last[first:-1], wanted_last[first:], strict=True):
        scale = np.exp(last.m).reshape(*last.m.shape, *(1,) * (got.ndim - last.m.ndim))
        np.testing.assert_allclose(got * scale, want, rtol=1e-10)


def with_input_gates(value):
    params, xs, carry = draw(CELLS["slstm"])
    params["kernel"][:, :4] = params["recurrent_kernel"][:, :4] = 0
    params["bias"][:4] = value
    zeros = type(carry)(*map(np.zeros_like, carry))
    return params, xs, zeros


@pytest.mark.parametrize("gate", [-1e4, -20.0, 0.0, 1e4])
def test_the_first_output_has_no_trace_of_its_input_gate(gate):
    params, xs, zeros = with_input_gates(gate)
    a = xs[0] @ params["kernel"] + params["bias"]
    _, _, z, o = np.split(a, 4, axis=-1)
    carry, y = cells.slstm().step(params, zeros, xs[0])
    np.testing.assert_allclose(y, np.tanh(z) * jax.nn.sigmoid(o), rtol=1e-12)
    np.testing.assert_array_equal(carry.n, 1)


def test_normalisers_differ_where_the_first_input_gate_is_small():
    params, xs, zeros = with_input_gates(-20.0)
    first = {
        name: cells.slstm(normalizer=name).step(params, zeros, xs[0])
        for name in ("paper", "clamped", "epsilon")
    }
    _, exact = first["paper"]
    carry, clamped = first["clamped"]
    np.testing.assert_allclose(clamped, exact * carry.n, rtol=1e-12)
    _, bounded = first["epsilon"]
    np.testing.assert_allclose(bounded, exact * carry.n / 1e-6, rtol=1e-12)
    assert (carry.n < 1e-6).all()


def test_a_normaliser_is_one_at_least():
    row = CELLS["slstm-exp"]
    for seed in range(5):
        params, xs, _ = draw(row, seed)
        last, _ = run(row.cell, params, 10 * xs)
        assert (np.asarray(last.n) >= 1).all()


@pytest.mark.parametrize("name", ["slstm", "mlstm"])
def test_a_rounded_stabiliser_is_the_one_that_the_gates_used(name):
    row = CELLS[name]
    params, xs, _ = jax.tree.map(jnp.float32, draw(row))
    gates = "bias" if name == "slstm" else "gate_bias"
    params[gates] += 100.3  # bfloat16 cannot represent it
    zeros = row.cell.initial_carry(params, xs[0])
    half = zeros._replace(m=zeros.m.astype(jnp.bfloat16))
    _, wanted = scanrnn.scan(functools.partial(row.cell.step, params), zeros, xs)
    _, got = scanrnn.scan(functools.partial(row.cell.step, params), half, xs)
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-5)


def test_no_memory_and_no_query_give_zero():
    row = CELLS["mlstm-heads"]
    params, xs, _ = draw(row)
    zeros = {key: np.zeros_like(value) for key, value in params.items()}
    zeros["gate_bias"] += 1e4
    last, ys = run(row.cell, zeros, xs)
    assert last.C.shape == (B, 2, 2, 2)
    np.testing.assert_array_equal(ys, 0)


@pytest.mark.parametrize("name", ["slstm", "mlstm"])
def test_forget_bias_starts_where_documented(name):
    make = getattr(cells, name)
    key = "bias" if name == "slstm" else "gate_bias"

    def of_f(**options):
        params = make(**options).init(jax.random.key(0), 3, 4)
        parts = 4 if name == "slstm" else 2
        return np.split(params[key], parts)[1].tolist()

    size = len(of_f())
    assert of_f() == size * [1.0]
    assert of_f(forget="exp") == size * [0.0]
    assert of_f(forget="exp", forget_bias=2) == size * [2.0]


@pytest.mark.parametrize("name", ["slstm", "mlstm"])
def test_chrono_is_for_sigmoid_forget_gates(name):
    key = "bias" if name == "slstm" else "gate_bias"
    make = getattr(cells, name)

    def gates(forget):
        params = make(forget=forget).init(
            jax.random.key(0), 3, 4, scheme=cells.chrono(longest=100)
        )
        return np.split(params[key], 4 if name == "slstm" else 2)

    i, f, *rest = gates("sigmoid")
    assert (f > 0).all()
    np.testing.assert_array_equal(i, -f)
    assert not np.any(rest)
    with pytest.raises(ValueError, match=f"{name}: .* chrono cannot apply"):
        gates("exp")


def test_learned_carry_of_an_slstm_has_no_normaliser():
    """A normaliser that is learned could be zero, and the output infinite."""
    cell = cells.learned_carry(cells.residual(cells.slstm()))
    params = cell.init(jax.random.key(0), 4, 4)
    assert [n for n in params if "initial" in n] == ["initial_carry_0"]
    params["initial_carry_0"] = jnp.arange(4.0)
    carry = cell.initial_carry(params, jnp.ones((2, 4)))
    np.testing.assert_array_equal(carry.h, [[0, 1, 2, 3]] * 2)
    assert not carry.n.any()
    with pytest.raises(ValueError, match="learned_carry: the fields C, n, m have"):
        cells.learned_carry(cells.mlstm())


def test_what_the_xlstm_cells_refuse():
    with pytest.raises(ValueError, match="slstm: normalizer='max' is unknown.*'paper'"):
        cells.slstm(normalizer="max")
    with pytest.raises(ValueError, match="mlstm: forget='relu' is unknown.*'sigmoid'"):
        cells.mlstm(forget="relu")
    with pytest.raises(ValueError, match="mlstm: hidden_features=4 does not .*heads=3"):
        cells.mlstm(heads=3).init(jax.random.key(0), 3, 4)
    for make in (cells.slstm, cells.mlstm):
        with pytest.raises(TypeError, match="forget_bias must be a number"):
            make(forget_bias="1")
