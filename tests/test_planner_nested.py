"""A planned scan in the step of a planned scan, and other programs in a step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call

import scanrnn
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import inside
from tests.compare import score

T, L, B, H = 4, 3, 5, 8
KEYS = jax.random.split(jax.random.key(0), 4)
V, U = (0.5 * jax.random.normal(key, (H, H)) for key in KEYS[:2])
XS = jax.random.normal(KEYS[2], (T, L, B, H))
ZEROS = jnp.zeros((B, H))
planned = functools.partial(scanrnn.scan, implementation="planned")
WRAPS = {
    "jit of grad": lambda f: jax.jit(jax.value_and_grad(f, (0, 1, 2))),
    "grad of jit": lambda f: jax.value_and_grad(jax.jit(f), (0, 1, 2)),
}


def encoder(scan, V, x, keys):
    """An inner loop with dropout, over parts of an input."""

    def step(h, inputs):
        x, key = inputs
        kept = jax.random.bernoulli(key, 0.5, h.shape)
        return jnp.tanh(x @ V + h @ V) * kept, None

    return scan(step, ZEROS, (x, keys))[0]


def loss(scan, impl, V, U, xs):
    keys = jax.random.split(jax.random.key(5, impl=impl), (T, L))

    def step(h, inputs):
        h = jnp.tanh(encoder(scan, V, *inputs) + h @ U)
        return h, h

    return score(scan(step, ZEROS, (xs, keys)))


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_loop_in_a_step_draws_the_numbers_of_lax_scan(impl, wrap):
    """Also if the inner step closes over weights that are being differentiated."""
    found = [
        WRAPS[wrap](functools.partial(loss, scan, impl))(V, U, XS)
        for scan in (planned, lax.scan)
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("wrap", WRAPS)
def test_outer_plan_sees_the_loop_in_a_step(wrap):
    """It could not weigh it, nor know its random numbers, if it did not."""
    plans = []

    def planning(step, init, xs):
        if xs[0].ndim == 4:
            plans.append(scanrnn.plan(step, init, xs))
        return planned(step, init, xs)

    WRAPS[wrap](functools.partial(loss, planning, "threefry2x32"))(V, U, XS)
    eqns = [f for plan in plans for e in plan.step.eqns for f in (e, *inside(e))]
    loops = [e for e in eqns if e.primitive.name == ops.RULED]
    assert loops
    for eqn in loops:
        assert any(map(ops.is_heavy, inside(eqn)))


@jax.custom_jvp
def called(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@called.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    slope = jax.pure_callback(np.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return called(x), dx * slope


PROGRAMS = {
    "a linear call": lambda x: linear_call(
        lambda _, a: 2.0 * a, lambda _, ct: 2.0 * ct, (), x
    ),
    "a call": jax.jit(called),
    "a map": lambda x: lax.map(called, x),
    "a branch": lambda x: lax.cond(True, called, jnp.cos, x),
    "a loop": lambda x: lax.fori_loop(0, 2, lambda _, a: called(a), x),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("at", [(0,), (1,), (2,), (0, 1, 2)])
def test_programs_that_cannot_be_batched_equal_lax_scan(name, at):
    """Programs of a time input, for which `vmap` has no rule."""

    def run(scan, V, U, xs):
        def step(h, x):
            h = jnp.tanh(PROGRAMS[name](x) @ V + h @ U)
            return h, h

        return score(scan(step, ZEROS, xs))

    found = [
        jax.jit(jax.value_and_grad(functools.partial(run, scan), at))(V, U, XS[:, 0])
        for scan in (scanrnn.scan, lax.scan)
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def plan_of(f):
    """The plan of a step that reads `f` of its input."""

    def step(h, x):
        h = jnp.tanh(f(x) @ V + h @ U)
        return h, h

    return scanrnn.plan(step, ZEROS, XS[:, 0])


def of_words(x):
    """A loop of products over parts of an input."""
    return lax.scan(lambda h, x: (jnp.tanh(x @ V + h @ V), None), ZEROS, x[None])[0]


@pytest.mark.parametrize("f", [of_words, functools.partial(encoder, planned)])
def test_gradient_of_a_loop_of_products_over_time_inputs_is_left_to_jax(f):
    """For all outer steps at once it would run twice, and take much memory."""
    if f is of_words:
        plan = plan_of(f)
    else:
        keys = jax.random.split(jax.random.key(0), (T, L))

        def step(h, inputs):
            h = jnp.tanh(f(V, *inputs) + h @ U)
            return h, h

        plan = scanrnn.plan(step, ZEROS, (XS, keys))
    assert not plan.defer


BATCHED = {
    "a polynomial": lambda x: lax.fori_loop(0, 3, lambda _, y: y * x + 1, x),
    "a rectifier": jax.jit(jax.nn.relu),
    "a softplus": jax.jit(jax.nn.softplus),
    "a sort": lambda x: jax.jit(jnp.sort)(x),
    "a factor": lambda x: jnp.linalg.cholesky(x[0][:, None] * x[0] + jnp.eye(H))[:B],
    "a sum of steps": lambda x: lax.associative_scan(jnp.add, x, axis=1),
    "a map": lambda x: lax.map(jnp.sin, x),
    "a norm": jax.nn.standardize,
}


@pytest.mark.parametrize("name", BATCHED)
def test_programs_that_can_be_batched_defer_the_weight_gradients(name):
    assert plan_of(BATCHED[name]).defer


def with_a_schedule(scan, U, h, start):
    """A step with a number that no mapped value reaches."""

    def step(carry, x):
        h, scale = carry
        return (jnp.tanh(x @ U + scale * h @ U), 0.5 * scale), (h, scale)

    return scan(step, (h, start), XS[:, 0])


def test_vmap_leaves_alone_numbers_that_no_mapped_value_reaches():
    batch = jnp.stack([ZEROS, ZEROS + 1])
    axes = ((0, None), (0, None))
    found = [
        jax.vmap(functools.partial(with_a_schedule, scan, U), (0, None), axes)(batch, 1)
        for scan in (planned, lax.scan)
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("order", ["of a map", "mapped"])
def test_gradients_by_numbers_that_vmap_leaves_alone_equal_lax_scan(order):
    def gradients(scan):
        run = functools.partial(with_a_schedule, scan)
        batch = jnp.stack([ZEROS, ZEROS + 1])
        if order == "mapped":
            one = jax.grad(lambda U, h, s: score(run(U, h, s)), (0, 1, 2))
            return jax.vmap(one, (None, 0, None))(U, batch, 1.5)
        axes = ((0, None), (0, None))
        every = jax.vmap(run, (None, 0, None), axes)
        return jax.grad(lambda *args: score(every(*args)), (0, 1, 2))(U, batch, 1.5)

    for ours, theirs in zip(*map(gradients, (planned, lax.scan)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
