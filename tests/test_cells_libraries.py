"""Compare cells with other libraries on the CPU: values and gradients, in float64."""

import functools
import importlib.util
import itertools

import jax
import numpy as np
import pytest

import scanrnn
from tests.cell_table import CELLS, draw

LIBRARIES = {  # our cells that each has
    "equinox": ("lstm", "gru"),
    "flax_linen": ("lstm", "gru", "elman", "mgu"),
    "flax_nnx": ("lstm", "elman"),
    "haiku": ("lstm", "gru-haiku", "elman_relu"),
    "keras": ("lstm", "elman", "elman_relu", "gru", "gru-cho2014"),
}
VALUES = {  # only values: these compute in float32, without gradients
    "onnxruntime": (
        "elman",
        "elman_relu",
        "lstm",
        "lstm-peephole",
        "gru",
        "gru-cho2014",
    ),
}


def pairs(libraries):
    both = [(library, name) for library in libraries for name in libraries[library]]
    return pytest.mark.parametrize("library, name", both, ids=map("-".join, both))


def layers(library):
    """The table of a library; the test is skipped if the library is not installed."""
    module = library.partition("_")[0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module} here")
    return importlib.import_module(f"tests.libraries.{library}").LAYERS


def ours(row, params, xs, carry):
    return scanrnn.scan(functools.partial(row.cell.step, params), carry, xs)


@pytest.mark.parametrize("library", [*LIBRARIES, *VALUES])
def test_every_layer_of_a_library_is_compared(library):
    assert set(layers(library)) == set({**LIBRARIES, **VALUES}[library])


@pairs(VALUES)
def test_cell_equals_the_library_in_values(library, name):
    row = CELLS[name]
    params, xs, carry = draw(row)
    last, ys = layers(library)[name](params, xs, carry)
    wanted_last, wanted = jax.jit(functools.partial(ours, row))(params, xs, carry)
    for got, want in zip([ys, *last], [wanted, *wanted_last], strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pairs(LIBRARIES)
def test_cell_equals_the_library_in_values_and_gradients(library, name):
    row, theirs = CELLS[name], layers(library)[name]
    params, xs, carry = draw(row)
    params = {k: jax.numpy.asarray(v) for k, v in params.items()}
    generator = np.random.default_rng(1)
    weights = [generator.normal(size=(len(xs), *carry.h.shape))]
    weights += [generator.normal(size=field.shape) for field in carry]

    def score(run, params, xs, carry):
        last, ys = run(params, xs, carry)
        results = [ys, *last]
        return sum(
            (w * a).sum() for w, a in zip(weights, results, strict=True)
        ), results

    results, gradients = [], []
    for run in (functools.partial(ours, row), theirs):
        grad = jax.grad(functools.partial(score, run), argnums=(0, 1, 2), has_aux=True)
        gradient, result = jax.jit(grad)(params, xs, carry)
        gradients.append(gradient)
        results.append(result)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)
    for got, want in itertools.chain([results, gradients]):
        jax.tree.map(close, got, want)
