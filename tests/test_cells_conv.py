"""Convolutional cells: what only these have."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import cells
from tests import oracles
from tests.cell_table import CELLS, B, H, T, draw
from tests.oracles import conv

every_family = pytest.mark.parametrize("name", ["conv_lstm", "conv_gru"])
every_row = pytest.mark.parametrize("name", [n for n in CELLS if CELLS[n].spatial])


def raises(kind, *words):
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, words)))


@every_family
@pytest.mark.parametrize(
    "value, kind, words",
    [
        (0, ValueError, ["kernel_size", "at least 1", "0"]),
        ((3, -1), ValueError, ["kernel_size", "at least 1", "-1"]),
        ((), ValueError, ["kernel_size=()", "0 spatial axes", "1, 2 or 3"]),
        ((1, 1, 1, 1), ValueError, ["4 spatial axes", "1, 2 or 3"]),
        (3.0, TypeError, ["kernel_size", "int", "3.0"]),
        ("3", TypeError, ["kernel_size", "int", "'3'"]),
    ],
)
def test_a_window_that_is_none_is_refused(name, value, kind, words):
    with raises(kind, name, *words):
        getattr(cells, name)(kernel_size=value)


def test_other_options_are_checked():
    with raises(ValueError, "conv_gru: dialect='haiku'", "'ballas2015', 'cudnn'"):
        cells.conv_gru(dialect="haiku")
    with raises(TypeError, "conv_lstm: forget_bias must be a number", "'a'"):
        cells.conv_lstm(forget_bias="a")
    with raises(TypeError, "dtype", "int8", "jnp.bfloat16"):
        cells.conv_lstm(dtype=jnp.int8)


@every_family
def test_one_window_makes_one_cell(name):
    make = getattr(cells, name)
    assert make(kernel_size=3) == make(kernel_size=[np.int64(3)])
    assert make(kernel_size=3) != make(kernel_size=(3, 3)) == make()


@every_row
def test_input_without_its_spatial_axes_is_refused(name):
    row = CELLS[name]
    params, xs, carry = draw(row)
    place = (0,) * (len(row.spatial) + 1)
    x = xs[0][place]
    with raises(ValueError, row.factory, f"x has shape {x.shape}", "spatial axes"):
        row.cell.step(params, carry, x)


@every_family
def test_carry_of_another_picture_is_refused(name):
    params, xs, carry = draw(CELLS[name])
    with raises(ValueError, name, "carry.h has shape (2, 2, 4)", "want (2, 3, 4)"):
        CELLS[name].cell.step(params, carry._replace(h=carry.h[:, :2]), xs[0])


@every_family
def test_params_of_another_window_are_refused(name):
    params, xs, carry = draw(CELLS[name])
    with raises(ValueError, name, "params['kernel'] has shape (3, 3, "):
        getattr(cells, name)().step(params, carry, xs[0])


@pytest.mark.slow
@every_row
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_precision_gradients_are_close_to_the_float32_ones(name, half):
    row = CELLS[name]
    arguments = jax.tree.map(jnp.float32, draw(row))

    def score(cell, params, xs, carry):
        last, ys = scanrnn.scan(functools.partial(cell.step, params), carry, xs)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in (ys, *last))

    def gradients(cell):
        grad = jax.grad(functools.partial(score, cell), argnums=(0, 1, 2))
        return jax.jit(grad)(*arguments)

    wanted, got = gradients(row.cell), gradients(row.make(dtype=half))
    for want, leaf in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        assert leaf.dtype == want.dtype
        error = np.linalg.norm(leaf - want) / np.linalg.norm(want)
        assert 0 < error < {"bfloat16": 6e-2, "float16": 8e-3}[half]


@every_row
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_saturated_gates_have_finite_values_and_gradients(name, scale):
    row = CELLS[name]
    params, xs, carry = jax.tree.map(jnp.float32, draw(row))

    def score(params, xs):
        _, ys = scanrnn.scan(functools.partial(row.cell.step, params), carry, xs)
        return jnp.sum(ys), ys

    found = jax.jit(jax.grad(score, argnums=(0, 1), has_aux=True))(params, scale * xs)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(found))


@every_family
def test_forget_bias_and_spread_of_the_kernels(name):
    cell = getattr(cells, name)(kernel_size=(3, 5))
    params = cell.init(jax.random.key(3), 40, 10)
    assert abs(np.std(params["kernel"]) * np.sqrt(15 * 40) - 1) < 0.03
    one = [0.0] * 10 + [1.0] * 10 + [0.0] * 20
    wanted = one if name == "conv_lstm" else [0.0] * 30
    np.testing.assert_array_equal(params["bias"], wanted)
    block = np.asarray(params["recurrent_kernel"])[..., :10].reshape(-1, 10)
    np.testing.assert_allclose(block.T @ block, np.eye(10), atol=1e-5)


def test_what_is_put_round_a_cell_fits_pictures():
    inner = cells.conv_lstm(kernel_size=(3, 3))
    x = jnp.arange(2.0 * 4 * 5 * 6).reshape(2, 4, 5, 6) / 100
    for wrap in (
        cells.residual,
        cells.highway,
        functools.partial(cells.zoneout, h=0.5),
    ):
        cell = wrap(inner)
        params = cell.init(jax.random.key(0), 6, 6)
        _, y = cell.step(params, cell.initial_carry(params, x), x)
        assert y.shape == x.shape
        assert cell.num_feature_axes == 3


def test_a_learned_carry_is_the_same_at_every_place():
    cell = cells.learned_carry(cells.conv_lstm(kernel_size=(3, 3)))
    params = cell.init(jax.random.key(0), 3, 2)
    assert params["initial_carry_1"].shape == (1, 1, 2)
    params["initial_carry_1"] += jnp.array([1.0, 2.0])
    carry = cell.initial_carry(params, jnp.ones([7, 4, 5, 3]))
    assert not carry.h.any()
    np.testing.assert_array_equal(carry.c, np.ones([7, 4, 5, 1]) * [1.0, 2.0])


@pytest.mark.slow
@every_row
@pytest.mark.parametrize("time_major", [False, True])
def test_a_layer_finds_the_time_axis(name, time_major):
    row = CELLS[name]
    _, xs, _ = draw(row)
    layer = scanrnn.nnx.RNN(
        row.cell,
        row.in_features,
        H,
        num_layers=2,
        return_carry=True,
        param_dtype=jnp.float64,
        rngs=nnx.Rngs(0),
    )
    inputs = xs if time_major else xs.swapaxes(0, 1)
    last, ys = layer(inputs, time_major=time_major)
    wanted = xs
    for params in layer.layers:
        params = {key: np.asarray(param[...]) for key, param in params.items()}
        zeros = np.zeros((B, *row.spatial, H))
        first = (zeros,) * len(last[0])
        _, wanted = oracles.run(row.oracle, params, wanted, first)
    got = ys if time_major else ys.swapaxes(0, 1)
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)
    assert last[1].h.shape == (B, *row.spatial, H)
    _, one = layer(inputs[:, 0] if time_major else inputs[0], time_major=time_major)
    np.testing.assert_allclose(one, got[:, 0], rtol=1e-10, atol=1e-12)


def test_gradients_go_through_all_steps_and_layers():
    """Explicit Python loops over time and over layers."""
    cell, spatial = cells.conv_lstm(kernel_size=(2, 2)), (3, 2)
    generator = np.random.default_rng(0)
    layers = [
        {
            name: generator.normal(size=value.shape)
            for name, value in cell.init(jax.random.key(0), features, 2).items()
        }
        for features in (1, 2)
    ]
    xs = generator.normal(size=(T + 1, B, *spatial, 1))
    weights = generator.normal(size=(T + 1, B, *spatial, 2))

    def by_hand(layers, xs):
        carries, score = [cell.initial_carry(layers[0], xs[0])] * 2, 0.0
        for x, weight in zip(xs, weights, strict=True):
            for number, params in enumerate(layers):
                carries[number], x = cell.step(params, carries[number], x)
            score += (weight * x).sum()
        return score

    def planned(layers, xs):
        for params in layers:
            first = cell.initial_carry(params, xs[0])
            _, xs = scanrnn.scan(functools.partial(cell.step, params), first, xs)
        return (weights * xs).sum()

    def oracle(tree):
        ys = tree["xs"]
        for number in range(len(layers)):
            params = {key: tree[f"{number}.{key}"] for key in layers[number]}
            zeros = np.zeros((B, *spatial, 2))
            _, ys = oracles.run(conv.lstm, params, ys, (zeros, zeros))
        return (weights * ys).sum()

    def flat(layers, xs):
        named = (
            (f"{n}.{key}", v) for n, p in enumerate(layers) for key, v in p.items()
        )
        return {**dict(named), "xs": xs}

    wanted = oracles.gradient(oracle, flat(layers, xs))
    for program in (by_hand, planned):
        found = flat(*jax.jit(jax.grad(program, argnums=(0, 1)))(layers, xs))
        for name, gradient in wanted.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-9, atol=1e-10)
    # The gradient reaches the input of every step, and goes through both layers.
    assert np.abs(wanted["xs"]).reshape(T + 1, -1).max(axis=1).min() > 1e-6
