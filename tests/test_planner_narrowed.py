"""Tables, ring buffers and delay lines in a carry: only what a step reads is kept."""

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn.machines import MACHINES
from scanrnn.planner.derivative.narrowed import are_read_in_part
from tests.compare import assert_same, value_and_gradients
from tests.test_planner_kept import second_order

T, B, F, N = 9, 3, 4, 20


def table(weights, carry, x):
    """Rows of a table are read and written at places that the input gives."""
    h, rows = carry
    h = jnp.tanh(rows[_at(x)] @ weights + h @ weights)
    return (h, rows.at[_at(x)].add(h)), h


def fading(weights, carry, x):
    h, rows = carry
    h = jnp.tanh(rows[_at(x)] @ weights + h @ weights)
    return (h, 0.9 * rows.at[_at(x)].set(h)), h


def by_content(weights, carry, x):
    """The place depends on the carry."""
    h, rows = carry
    at = (jnp.abs(h[:, 0]) * 99).astype("int32") % N
    h = jnp.tanh(rows[at] * x + h @ weights)
    return (h, rows.at[at].set(0.5 * h)), h


def ring(weights, carry, x):
    h, rows = carry
    place = (h[0, 0] * 0).astype("int32") + 2
    old = jax.lax.dynamic_slice_in_dim(rows, place, B)
    h = jnp.tanh(x @ weights + old @ weights)
    return (h, jax.lax.dynamic_update_slice_in_dim(rows, h, place + 1, 0)), h


def delay(weights, carry, x):
    h, rows = carry
    h = jnp.tanh(x @ weights + rows[-B:] @ weights) * jnp.tanh(rows[:B])
    return (h, jnp.concatenate([h, rows[:-B]])), h


def total(weights, carry, x):
    h, rows = carry
    h = jnp.tanh(x @ weights + rows.sum(0))
    return (h, jnp.concatenate([h, rows[:-B]])), h


def whole(weights, carry, x):
    """The derivative of a square reads the whole carry: it is kept."""
    h, rows = carry
    h = jnp.tanh(x @ weights + (rows**2).sum(0))
    return (h, jnp.concatenate([h, rows[:-B]])), h


def _at(x):
    return (jnp.abs(x[:, 0]) * 99).astype("int32") % N


PARTS = {f.__name__: f for f in (table, fading, by_content, ring, delay, total)}
STEPS = PARTS | {"whole": whole}


def of(name):
    """A step and its arguments."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = 0.5 * jax.random.normal(keys[0], (F, F))
    carry = jax.random.normal(keys[1], (B, F)), jax.random.normal(keys[2], (N, F))
    return STEPS[name], weights, carry, jax.random.normal(keys[3], (T, B, F))


def planned(name, **options):
    step, weights, *arguments = of(name)
    return scanrnn.plan(lambda c, x: step(weights, c, x), *arguments, **options)


@pytest.mark.parametrize("machine", ["cpu", "tpu v5e"])
@pytest.mark.parametrize("residuals", [None, "chunked", "recompute"])
@pytest.mark.parametrize("name", STEPS)
def test_a_carry_that_is_read_in_part_equals_lax_scan(name, residuals, machine):
    plan = scanrnn.Options(
        implementation="planned", residuals=residuals, machine=MACHINES[machine]
    )
    assert_same(of(name), value_and_gradients, plan=plan)


@pytest.mark.parametrize("name", STEPS)
def test_second_derivatives_by_parts_of_a_carry_equal_lax_scan(name):
    plan = scanrnn.Options(implementation="planned")
    assert_same(of(name), second_order, plan=plan)


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
@pytest.mark.parametrize("name", PARTS)
def test_a_carry_that_is_read_in_part_is_not_kept(name, machine):
    plan = planned(name, machine=machine)
    assert plan.residual_bytes[0] < T * N * F * 8  # those of the carry at each step
    assert 1 not in plan.derivative.carry_saved


def test_a_carry_that_is_read_whole_is_kept():
    assert 1 in planned("whole").derivative.carry_saved


def chosen(weights, h, x):
    """Each example chooses a matrix by its input."""
    matrices = jnp.stack([weights["in"] * k for k in (0.5, 1.0, 1.5)])
    place = (jnp.abs(x[:, 0]) * 99).astype("int32") % 3
    h = jnp.tanh(jnp.einsum("bf,bfg->bg", x, matrices[place]) + h @ weights["own"])
    return h, h


@pytest.fixture
def choosing():
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {"in": (F, F), "own": (F, F)}
    weights = {
        name: jax.random.normal(key, shape)
        for (name, shape), key in zip(weights.items(), keys, strict=False)
    }
    h, xs = (
        jax.random.normal(k, s) for k, s in ((keys[2], (B, F)), (keys[3], (T, B, F)))
    )
    return chosen, weights, h, xs


def test_matrices_that_examples_choose_equal_lax_scan(choosing):
    plan = scanrnn.Options(implementation="planned")
    assert_same(choosing, value_and_gradients, plan=plan)
    assert_same(choosing, second_order, plan=plan)


def test_matrices_that_examples_choose_are_not_made_for_all_steps(choosing):
    """Neither they nor their cotangents are in an array of all steps."""
    step, *arguments = choosing

    def loss(weights, h, xs):
        ys = scanrnn.scan(lambda h, x: step(weights, h, x), h, xs)[1]
        return jnp.sum(ys**2)

    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*arguments))
    assert f"[{T},{B},{F},{F}]" not in text.replace(" ", "")


def halves(weights, carry, x):
    """All of the carry is read, in two parts."""
    h, rows = carry
    h = jnp.tanh(h @ weights + x) * rows[: N // 2].sum() + rows[N // 2 :].sum()
    return (h, 0.5 * rows), h


def cast(weights, carry, x):
    """The matrix is multiplied in half precision: of fewer bytes, but not a part."""
    h, rows = carry
    h = jnp.tanh(rows.astype("bfloat16") @ weights.astype("bfloat16"))[:B] + x
    return (h.astype(x.dtype), jnp.concatenate([h.astype(x.dtype), rows[:-B]])), h


@pytest.mark.parametrize("step", [halves, cast, whole])
def test_what_is_read_whole_is_no_part(step):
    _, weights, carry, xs = of("table")
    loop = scanrnn.plan(lambda c, x: step(weights, c, x), carry, xs).stages.loop
    assert not are_read_in_part(loop, loop.carry[1:])
