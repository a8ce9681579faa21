"""Compare convolutional LSTMs with Flax's and Keras's: values, gradients, float64."""

import functools
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn import interop
from tests.cell_table import CELLS, H, draw
from tests.libraries import weights

SIZES = ["conv_lstm", "conv_lstm-2d", "conv_lstm-3d"]
every_size = pytest.mark.parametrize("name", SIZES)


def flax(row):
    """`nn.ConvLSTMCell`: gates i, g, f, o, two biases, and f + 1."""
    layer = nn.RNN(
        nn.ConvLSTMCell(H, row.cell.kernel_size, param_dtype=jnp.float64),
        time_major=True,
        return_carry=True,
    )

    def run(params, xs, carry):
        (tree,) = interop.to_linen(weights(row.cell, params))
        first = carry.c, carry.h
        (c, h), ys = layer.apply({"params": tree}, xs, initial_carry=first)
        return ys, h, c

    return run


def keras(row):
    """`ConvLSTM1D` and others: gates in our order, one bias, which is that of x."""
    os.environ["KERAS_BACKEND"] = "jax"  # read once, when Keras is imported
    layers = pytest.importorskip("keras").layers
    kinds = layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D
    axes = len(row.spatial)
    layer = kinds[axes - 1](
        H,
        row.cell.kernel_size,
        padding="same",
        activation=jnp.tanh,  # Keras's own computes in float32
        recurrent_activation="sigmoid",
        return_sequences=True,
        return_state=True,
        dtype="float64",
    )

    def run(params, xs, carry):
        xs = jnp.swapaxes(xs, 0, 1)
        if not layer.built:
            layer.build(xs.shape)
        (arrays,) = interop.to_keras(weights(row.cell, params))
        seeds = [variable.value for variable in layer.non_trainable_variables]
        (ys, h, c), _ = layer.stateless_call(
            arrays, seeds, xs, initial_state=[carry.h, carry.c]
        )
        return jnp.swapaxes(ys, 0, 1), h, c

    return run


def ours(row):
    def run(params, xs, carry):
        last, ys = scanrnn.scan(functools.partial(row.cell.step, params), carry, xs)
        return ys, last.h, last.c

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # peers may warn on import
@pytest.mark.parametrize("library", [flax, keras])
@every_size
def test_cell_equals_a_library_in_values_and_gradients(library, name):
    row = CELLS[name]
    params, xs, carry = draw(row)
    generator = np.random.default_rng(1)
    slopes = [generator.normal(size=(len(xs), *carry.h.shape))]
    slopes += [generator.normal(size=field.shape) for field in carry]

    def results_and_gradients(run):
        def score(*arguments):
            results = run(*arguments)
            pairs = zip(slopes, results, strict=True)
            return sum((w * a).sum() for w, a in pairs), results

        grad = jax.grad(score, argnums=(0, 1, 2), has_aux=True)
        return jax.jit(grad)(params, xs, carry)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-11)
    wanted = results_and_gradients(library(row))
    jax.tree.map(close, results_and_gradients(ours(row)), wanted)
