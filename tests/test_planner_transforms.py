"""Transforms that work on `lax.scan` also work on `scanrnn.scan`."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from tests.compare import assert_same, score
from tests.step_table import build

SOME = ("ln_lstm", "mixed_dtypes", "with_cond", "nested_scan", "with_prng")


def directions(floats):
    return [jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in floats]


def eager(loss, outputs):
    return lambda floats: (outputs(floats), jax.grad(loss)(floats))


def jvp(loss, outputs):
    return jax.jit(lambda x: jax.jvp(loss, (x,), (directions(x),)))


def jacfwd(loss, outputs):
    return jax.jit(lambda x: jax.jacfwd(lambda last: loss([*x[:-1], last]))(x[-1]))


def linearize(loss, outputs):
    def run(x):
        value, linear = jax.linearize(loss, x)
        return value, linear(directions(x))

    return jax.jit(run)


def forward_over_reverse(loss, outputs):
    return jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (directions(x),)))


def reverse_over_reverse(loss, outputs):
    def slope(x):
        return score(jax.grad(loss)(x))

    return jax.jit(jax.grad(slope))


def reverse_over_forward(loss, outputs):
    return jax.jit(jax.grad(lambda x: jax.jvp(loss, (x,), (directions(x),))[1]))


def remat(loss, outputs):
    return jax.jit(jax.grad(jax.checkpoint(loss)))


def ensemble(loss, outputs):
    """vmap over weights, carries and data together."""

    def run(x):
        many = [jnp.stack([leaf, 0.5 * leaf]) for leaf in x]
        return jax.vmap(jax.value_and_grad(loss))(many)

    return jax.jit(run)


def over_last_input(loss, outputs):
    """vmap over one input only; weights are shared."""

    def run(x):
        many = jnp.stack([x[-1], 0.5 * x[-1]])
        return jax.vmap(lambda last: jax.value_and_grad(loss)([*x[:-1], last]))(many)

    return jax.jit(run)


def per_example(loss, outputs):
    """Gradients of shared weights under vmap over data (per-example gradients)."""

    def run(x):
        many = jnp.stack([x[-1], 0.5 * x[-1]])
        return jax.vmap(lambda last: jax.grad(loss)([*x[:-1], last])[0])(many)

    return jax.jit(run)


TRANSFORMS = [
    eager,
    jvp,
    jacfwd,
    linearize,
    forward_over_reverse,
    reverse_over_reverse,
    reverse_over_forward,
    remat,
    ensemble,
    over_last_input,
    per_example,
]


# One step under every transform, and of the others two at a time, in turn.
PAIRS = [
    *((SOME[0], transform) for transform in TRANSFORMS),
    *(
        pytest.param(name, transform, marks=pytest.mark.slow)
        for k, name in enumerate(SOME[1:])
        for i, transform in enumerate(TRANSFORMS)
        if (i + k) % 2
    ),
]


@pytest.mark.parametrize(("name", "transform"), PAIRS)
def test_transform_of_scan_equals_that_of_lax_scan(name, transform):
    # The step rounds to float32 and float16, and a plan rounds in another order.
    rtol = 1e-4 if name == "mixed_dtypes" else 1e-9
    assert_same(build(name), transform, rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["recompute", "chunked", "everything"])
def test_residual_policy_has_second_derivatives(policy):
    plan = scanrnn.Options(residuals=policy)
    assert_same(build("ln_lstm"), forward_over_reverse, plan=plan)


def test_gradient_of_one_argument_only_equals_lax_scan():
    def first(loss, outputs):
        return jax.jit(lambda x: jax.grad(lambda w: loss([w, *x[1:]]))(x[0]))

    def last(loss, outputs):
        return jax.jit(lambda x: jax.grad(lambda u: loss([*x[:-1], u]))(x[-1]))

    assert_same(build("ln_lstm"), first)
    assert_same(build("ln_lstm"), last)


def test_while_loop_on_an_undifferentiated_carry_does_not_stop_reverse_mode():
    """`lax.scan` can differentiate this. With tangents for all floats, JAX cannot."""

    def step(u, carry, x):
        h, n = carry
        n = lax.while_loop(lambda n: n < 3.0, lambda n: n + 1.0, n)
        return (jnp.tanh(h @ u + x), n), h * n

    make = step, jnp.eye(3), (jnp.ones((2, 3)), 0.0), jnp.ones((4, 2, 3))

    def in_weights(loss, outputs):
        return jax.jit(lambda x: jax.grad(lambda u: loss([u, *x[1:]]))(x[0]))

    assert_same(make, in_weights)


def test_scan_over_layers_of_scans_equals_lax_scan():
    """A planned scan inside the step of a planned scan."""

    def program(scan, weights, xs):
        def layer(x, w):
            def step(h, x):
                h = jnp.tanh(x @ w[0] + h @ w[1])
                return h, h

            return scan(step, jnp.zeros(x.shape[1:]), x)[1], None

        return score(scan(layer, xs, weights)[0])

    weights = jax.random.normal(jax.random.key(0), (2, 2, 3, 3))
    xs = jax.random.normal(jax.random.key(1), (4, 2, 3))
    wanted = jax.jit(jax.grad(functools.partial(program, lax.scan), (0, 1)))
    got = jax.jit(jax.grad(functools.partial(program, scanrnn.scan), (0, 1)))
    for a, b in zip(wanted(weights, xs), got(weights, xs), strict=True):
        assert jnp.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_scan_runs_under_disable_jit():
    step, params, init, xs = build("elman")
    with jax.disable_jit():
        _, ys = scanrnn.scan(functools.partial(step, params), init, xs)
    _, wanted = lax.scan(functools.partial(step, params), init, xs)
    assert jnp.allclose(ys, wanted)


@pytest.mark.parametrize(
    "mode", [jax.disable_jit, jax.debug_nans, jax.check_tracer_leaks]
)
@pytest.mark.parametrize("implementation", ["associative", "planned"])
def test_affine_loop_runs_under_the_modes_for_debugging(mode, implementation):
    xs = jax.random.normal(jax.random.key(0), (9, 3))

    def loss(decay, scan):
        def step(h, x):
            h = decay * h + x
            return h, h

        return jnp.sum(jnp.sin(scan(step, xs[0], xs)[1]))

    ours = functools.partial(scanrnn.scan, implementation=implementation)
    wanted = jax.value_and_grad(loss)(xs[1], lax.scan)
    with mode(True):
        found = jax.value_and_grad(loss)(xs[1], ours)
    chex.assert_trees_all_close(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
def test_reverse_loop_that_reads_nothing_is_exported_for_any_length(machine):
    """A linear recurrence reads no residuals, so only xs tell its length."""
    weights, init, xs = jnp.full((4, 4), 0.1), jnp.ones((2, 4)), jnp.ones((7, 2, 4))
    plan = scanrnn.Options(machine=machine)

    def loss(scan, weights, init, xs):
        final, _ = scan(lambda c, x: (c @ weights + x, None), init, xs)
        return final.sum()

    ours = jax.grad(
        functools.partial(loss, functools.partial(scanrnn.scan, plan=plan)), (0, 1, 2)
    )
    (t,) = jax.export.symbolic_shape("t")
    spec = jax.ShapeDtypeStruct((t, 2, 4), xs.dtype)
    exported = jax.export.export(jax.jit(ours))(weights, init, spec)
    wanted = jax.grad(functools.partial(loss, lax.scan), (0, 1, 2))(weights, init, xs)
    chex.assert_trees_all_close(exported.call(weights, init, xs), wanted, rtol=1e-12)


def test_profilers_show_the_named_scopes_of_a_step():
    def step(u, h, x):
        with jax.named_scope("before"):
            x = jnp.sin(x @ u)
        with jax.named_scope("gate"):
            h = jnp.tanh(x + h @ u)
        with jax.named_scope("readout"), jax.named_scope("wave"):
            return h, jnp.cos(h @ u)

    plan = scanrnn.Options(implementation="planned")
    arguments = jnp.eye(3), jnp.ones((2, 3)), jnp.ones((4, 2, 3))

    def loss(u, init, xs):
        return score(scanrnn.scan(functools.partial(step, u), init, xs, plan=plan))

    text = jax.jit(jax.grad(loss)).lower(*arguments).as_text(debug_info=True)
    found = [name in text for name in ("before", "gate", "readout/wave")]
    assert found == [True] * 3
