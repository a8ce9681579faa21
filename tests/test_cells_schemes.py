"""Schemes: how parameters start, by the name of the library that starts them so."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scanrnn import cells
from scanrnn.cells import SCHEMES

D, H = 60, 50
every_gated = pytest.mark.parametrize("name", ["elman", "lstm", "gru"])


def init(cell, scheme, **initializers):
    return cell.init(jax.random.key(2), D, H, scheme=scheme, **initializers)


def orthogonal(block):
    return np.allclose(block.T @ block, np.eye(block.shape[1]), atol=1e-5)


@every_gated
@pytest.mark.parametrize("scheme", ["default", "flax"])
def test_flax_draws_orthogonal_gate_by_gate(name, scheme):
    cell = getattr(cells, name)()
    params = init(cell, scheme)
    blocks = np.split(params["recurrent_kernel"], len(cell.gates), axis=1)
    assert all(map(orthogonal, blocks))
    # LeCun's normal distribution, truncated at two standard deviations.
    assert abs(np.std(params["kernel"]) * np.sqrt(D) - 1) < 0.05


def test_only_our_default_and_keras_start_with_a_forget_bias():
    forgets = {
        name: float(np.mean(np.split(init(cells.lstm(), name)["bias"], 4)[1]))
        for name in ("default", "flax", "keras")
    }
    assert forgets == {"default": 1.0, "flax": 0.0, "keras": 1.0}
    bias = init(cells.lstm(forget_bias=3.0), "flax")["bias"]
    assert np.split(bias, 4)[1].tolist() == [3.0] * H


@every_gated
def test_keras_draws_all_gates_at_once(name):
    cell = getattr(cells, name)()
    params = init(cell, "keras")
    assert orthogonal(params["recurrent_kernel"].T)
    limit = np.sqrt(6 / (D + len(cell.gates) * H))
    assert 0.95 * limit < np.abs(params["kernel"]).max() <= limit


@every_gated
def test_torch_draws_all_from_one_range(name):
    params = init(getattr(cells, name)(), "torch")
    bound = H**-0.5
    for key in ("kernel", "recurrent_kernel"):
        assert 0.95 * bound < np.abs(params[key]).max() <= bound
    # Our bias is the sum of torch's two. Only the GRU's candidate keeps both.
    bias = params["bias"]
    if name == "gru":
        rest, candidate = np.split(bias, [2 * H])
        for own in (candidate, params["recurrent_bias"]):
            assert 0.8 * bound < np.abs(own).max() <= bound
        bias = rest
    assert bound < np.abs(bias).max() <= 2 * bound


def test_torch_leaves_the_shift_of_a_norm_at_its_constant():
    bias = init(cells.lstm(norm="tf", forget_bias=3.0), "torch")["norm_bias"]
    assert np.split(bias, 4)[1].tolist() == [3.0] * H
    assert bias.sum() == 3 * H


def test_chrono_spreads_the_spans_of_gates():
    scheme = cells.chrono(longest=1000)
    i, f, g, o = np.split(init(cells.lstm(), scheme)["bias"], 4)
    np.testing.assert_array_equal(i, -f)
    assert not g.any() and not o.any()
    assert 0 <= f.min() and np.log(500) < f.max() <= np.log(999)
    bias = init(cells.lstm(), cells.chrono(1000, "torch"))["bias"]
    assert np.abs(np.split(bias, 4)[2]).max() <= 2 * H**-0.5


def test_heads_are_drawn_each_for_itself():
    params = init(cells.gru(heads=5), "default")
    kernel = np.asarray(params["recurrent_kernel"])
    assert kernel.shape == (5, H // 5, 3 * H // 5)
    blocks = [block for head in kernel for block in np.split(head, 3, axis=1)]
    assert all(map(orthogonal, blocks))
    assert len({float(block[0, 0]) for block in blocks}) == 15


def test_a_given_initializer_replaces_a_part_of_the_scheme():
    ones = jax.nn.initializers.ones
    params = init(cells.gru(), "torch", bias_init=ones)
    assert (params["bias"] == 1).all() and (params["recurrent_bias"] == 1).all()
    assert np.abs(params["kernel"]).max() <= H**-0.5


def test_a_scheme_of_ones_own_is_a_function_of_the_size():
    def own(hidden_features):
        scheme = SCHEMES["flax"](hidden_features)
        return scheme.replaced("own", {"kernel_init": jax.nn.initializers.ones})

    assert (init(cells.elman(), own)["kernel"] == 1).all()


@every_gated
def test_what_is_no_scheme_is_refused(name):
    cell = getattr(cells, name)()
    with pytest.raises(ValueError, match=f"{name}: scheme='xavier' is unknown.*torch"):
        init(cell, "xavier")
    with pytest.raises(TypeError, match="no argument 'weight_init', it takes scheme"):
        init(cell, "default", weight_init=jax.nn.initializers.ones)
    with pytest.raises(ValueError, match="chrono: longest=2.0, want more than 2"):
        cells.chrono(2)
    with pytest.raises(ValueError, match="chrono: longest=inf, want .*finite"):
        cells.chrono(float("inf"))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("scheme", [*SCHEMES, cells.chrono(100)])
def test_half_params_are_float32_params_cast(scheme, dtype):
    draw = functools.partial(cells.gru().init, jax.random.key(0), 3, 4, scheme=scheme)
    half, wide = draw(dtype), draw(jnp.float32)
    for key in wide:
        np.testing.assert_array_equal(half[key], wide[key].astype(dtype))


def test_chrono_and_an_initializer_of_biases_are_refused_together():
    zeros = jax.nn.initializers.zeros
    with pytest.raises(ValueError, match="lstm: chrono and bias_init both draw"):
        init(cells.lstm(), cells.chrono(100), bias_init=zeros)


def test_flax_draws_the_recurrent_convolution_as_its_own_cell_does():
    ours = init(cells.conv_lstm(kernel_size=1), "flax")["recurrent_kernel"]
    assert not any(map(orthogonal, np.split(np.asarray(ours[0]), 4, axis=1)))
