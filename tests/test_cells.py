"""The cells against NumPy: values and gradients, in float64."""

import dataclasses
import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn import cells
from scanrnn.cells._cell import param_types
from scanrnn.cells._integration import INTEGRATIONS
from scanrnn.cells._norms import NORMS
from scanrnn.cells._wrapper import Wrapper
from tests import oracles
from tests.cell_table import CELLS, EVERY, ONE_OF_EACH, ONE_ROW_EACH, B, H, draw

every_cell = pytest.mark.parametrize("row", EVERY)
one_of_each = pytest.mark.parametrize("row", ONE_ROW_EACH)


def close(got, want, rtol=1e-11):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def run(cell, params, xs, carry):
    """Run our cell, as `oracles.run` runs its oracle."""
    return scanrnn.scan(functools.partial(cell.step, params), carry, xs)


def test_every_public_cell_has_a_row():
    factories = {
        name
        for name, value in vars(cells).items()
        if inspect.isfunction(value)
        and inspect.signature(value).return_annotation is cells.Cell
    }
    assert {row.factory for row in CELLS.values()} == factories


@one_of_each
def test_every_public_cell_gives_its_equations_and_where_they_are_from(row):
    doc = inspect.getdoc(getattr(cells, row.factory)) or ""
    assert ".. math::" in doc
    assert "Reference:" in doc or "References:" in doc


def test_every_option_has_a_row():
    rows = [row.cell for row in CELLS.values() if hasattr(row.cell, "integration")]
    assert {cell.norm for cell in rows} == set(NORMS)
    every = {
        (cell.name, cell.norm, cell.integration) for cell in rows if cell.heads == 1
    }
    for name in ("elman", "lstm", "gru"):
        for norm in (None, "ba2016"):
            for integration in (
                INTEGRATIONS["additive"],
                INTEGRATIONS["multiplicative"],
            ):
                assert (name, norm, integration) in every


@every_cell
def test_values_and_every_gradient_equal_the_oracle(row):
    params, xs, carry = draw(row)
    last, ys = oracles.run(row.oracle, params, xs, carry)
    generator = np.random.default_rng(1)
    weights = [generator.normal(size=a.shape) for a in (ys, *last)]

    def score(run_it, tree):
        params = {k: v for k, v in tree.items() if k not in ("xs", *carry._fields)}
        first = type(carry)(*(tree[name] for name in carry._fields))
        last, ys = run_it(params, tree["xs"], first)
        results = (ys, *last)
        return sum(
            (w * a).sum() for w, a in zip(weights, results, strict=True)
        ), results

    def theirs(tree):
        return score(functools.partial(oracles.run, row.oracle), tree)[0]

    tree = {**params, "xs": xs, **carry._asdict()}
    ours = functools.partial(score, functools.partial(run, row.cell))
    got, results = jax.jit(jax.grad(ours, has_aux=True))(tree)
    for a, b in zip(results, (ys, *last), strict=True):
        close(a, b, 1e-12)
    want = oracles.gradient(theirs, tree)
    assert got.keys() == want.keys()
    for name in want:
        close(got[name], want[name], 1e-10)


@pytest.mark.parametrize("norm", [None, "ba2016"])
@pytest.mark.parametrize("name", ["elman", "lstm", "gru"])
def test_multiplicative_integration_can_be_additive(name, norm):
    make = getattr(cells, name)
    plain, joined = make(norm=norm), make(norm=norm, integration="multiplicative")
    params, xs, carry = draw(CELLS[name if norm is None else f"{name}-norm"])
    ones = jnp.ones_like(params["bias"])
    neutral = {**params, "alpha": 0 * ones, "beta1": ones, "beta2": ones}
    got, want = joined.step(neutral, carry, xs[0]), plain.step(params, carry, xs[0])
    jax.tree.map(functools.partial(close, rtol=1e-14), got, want)


@pytest.mark.parametrize("per_gate", [False, True])
def test_independent_features_are_dropped_where_they_meet_their_weights(per_gate):
    row = CELLS["indrnn-tanh"]
    cell = row.make(recurrent_dropout=0.5, mask_per_gate=per_gate)
    params, xs, carry = draw(row)
    noise = cell.noise(jax.random.key(0), params, xs).fixed
    mask = noise["recurrent"].reshape(carry.h.shape)
    assert set(np.unique(mask)) == {0.0, 2.0}
    got, _ = cell.step(params, carry, xs[0], noise)
    want, _ = row.cell.step(params, carry._replace(h=mask * carry.h), xs[0])
    close(got.h, want.h, 1e-14)


def biases_of(row):
    names = param_types(row.cell, row.in_features, H)
    return {name for name in names if name.endswith("bias")}


BIASED = {
    name: row
    for name, row in ONE_OF_EACH.items()
    if biases_of(row) and not isinstance(row.cell, Wrapper)
}


@pytest.mark.parametrize("row", BIASED.values(), ids=BIASED)
def test_a_cell_without_biases_is_that_of_zero_biases(row):
    params, xs, carry = draw(row)
    biases = biases_of(row)
    matrices = {name: a for name, a in params.items() if name not in biases}
    bare = row.make(use_bias=False)
    assert set(bare.init(jax.random.key(0), row.in_features, H)) == set(matrices)
    zeros = params | {name: np.zeros_like(params[name]) for name in biases}

    def loss(params, cell):
        carried, ys = run(cell, params, xs, carry)
        return jnp.sum(jnp.sin(ys)), (carried, ys)

    both = jax.value_and_grad(loss, has_aux=True)
    (got, slopes), (want, expected) = both(matrices, bare), both(zeros, row.cell)
    jax.tree.map(close, got, want)
    jax.tree.map(close, slopes, {name: expected[name] for name in matrices})


@pytest.mark.parametrize(
    "options", [{"use_bias": False}, {"norm": "fastrnns"}], ids=str
)
@pytest.mark.parametrize(
    "scheme", ["default", cells.chrono(longest=9)], ids=["forget_bias", "chrono"]
)
def test_a_start_of_a_bias_that_is_not_there_is_refused(options, scheme):
    number = 1.0 if scheme == "default" else None
    cell = cells.lstm(forget_bias=number, **options)
    with pytest.raises(ValueError, match="lstm: this cell has no .*bias"):
        cell.init(jax.random.key(0), 3, 4, scheme=scheme)
    cells.lstm(**options).init(jax.random.key(0), 3, 4)


@one_of_each
def test_a_step_takes_any_batch_axes(row):
    params, xs, carry = draw(row)
    step = jax.jit(row.cell.step)
    _, want = step(params, carry, xs[0])
    one = jax.tree.map(lambda a: a[1], carry)
    close(step(params, one, xs[0, 1])[1], want[1])
    more = jax.tree.map(lambda a: a.reshape(1, B, 1, *a.shape[1:]), carry)
    x = xs[0].reshape(1, B, 1, *xs.shape[2:])
    close(step(params, more, x)[1], want.reshape(1, B, 1, *want.shape[1:]))


@every_cell
def test_a_cell_is_a_value(row):
    same = {key: other for key, other in CELLS.items() if other.cell == row.cell}
    assert list(same.values()) == [row]
    rebuilt = pickle.loads(pickle.dumps(row.cell))
    assert rebuilt == row.cell
    assert hash(rebuilt) == hash(row.cell)


def test_equal_cells_share_a_trace():
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def step(cell, params, carry, x):
        traces.append(cell)
        return cell.step(params, carry, x)

    params, xs, carry = draw(CELLS["lstm-norm"])
    step(cells.lstm(norm="ba2016"), params, carry, xs[0])
    step(cells.lstm(norm="ba2016"), params, carry, xs[1])
    assert len(traces) == 1


@one_of_each
def test_a_cell_can_be_made_again_from_its_fields(row):
    """`dataclasses.replace` makes cells like this."""
    assert dataclasses.replace(row.cell) == row.cell
