"""Gates that are fully closed or open: nothing may become infinite or NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from tests.cell_table import CELLS, ONE_OF_EACH, draw
from tests.tiers import one_in

# Rows that may not be finite here, and why not.
UNBOUNDED: dict[str, str] = {}

EVERY_VARIANT = [  # each variant has exponentials or quotients of its own
    name for name in CELLS if name.startswith(("min", "rglru", "slstm", "mlstm"))
]


def in_float32(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def assert_finite(row, params, xs, implementation):
    """Check that values and gradients are finite, from the first step on."""
    params, xs = in_float32((params, xs))
    first = row.cell.initial_carry(params, xs[0], jnp.float32)

    def score(params, xs, carry, implementation):
        step = functools.partial(row.cell.step, params)
        outputs = scanrnn.scan(step, carry, xs, implementation=implementation)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(outputs)), outputs

    run = functools.partial(score, implementation=implementation)
    run = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))
    for path, leaf in jax.tree_util.tree_leaves_with_path(run(params, xs, first)):
        assert jnp.isfinite(leaf).all(), jax.tree_util.keystr(path)


# The planner does not change what a step computes: it runs by JAX alone where it has
# exponentials or quotients.
PLANNED = one_in(3, dict.fromkeys([*ONE_OF_EACH, *EVERY_VARIANT]))


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        *(pytest.param(*p.values, None, marks=p.marks) for p in PLANNED),
        *(pytest.param(n, "scan", marks=pytest.mark.slow) for n in EVERY_VARIANT),
    ],
)
def test_large_inputs_have_finite_values_and_gradients(name, implementation):
    if name in UNBOUNDED:
        pytest.skip(UNBOUNDED[name])
    params, xs, _ = draw(CELLS[name])
    assert_finite(CELLS[name], params, 1e4 * xs, implementation)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [-1, 1], ids=["negative", "positive"])
@pytest.mark.parametrize("name", EVERY_VARIANT)
def test_every_gate_may_be_shut_or_open(name, sign):
    params, xs, _ = draw(CELLS[name])
    for bias in {"bias", "gate_bias"} & params.keys():
        params[bias] = np.full_like(params[bias], sign * 1e4)
    assert_finite(CELLS[name], params, xs, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, steps, batch",
    [
        # No steps and no examples for every cell; a single step and many in turns.
        (name, *size)
        for i, name in enumerate(ONE_OF_EACH)
        for size in [(0, 1), (2, 0), [(1, 1), (63, 3)][i % 2]]
    ],
)
def test_degenerate_sizes_have_finite_values_and_gradients(name, steps, batch):
    """Sizes are: one feature in and out, no steps, one step, no examples."""
    row = CELLS[name]
    heads = getattr(row.cell, "heads", 1)
    params = row.cell.init(jax.random.key(0), heads, heads)
    xs = jnp.ones((steps, batch, *row.spatial, heads))

    def score(params, xs):
        first = row.cell.initial_carry(params, jnp.sum(xs, axis=0))
        step = functools.partial(row.cell.step, params)
        carry, ys = scanrnn.scan(step, first, xs)
        return sum(jnp.sum(leaf) for leaf in (*jax.tree.leaves(carry), ys)), ys

    run = jax.jit(jax.value_and_grad(score, argnums=(0, 1), has_aux=True))
    (value, ys), gradients = run(params, xs)
    assert ys.shape[:2] == (steps, batch)
    for leaf in jax.tree.leaves((value, ys, gradients)):
        assert jnp.isfinite(leaf).all()
