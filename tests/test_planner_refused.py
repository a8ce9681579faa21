"""Steps that nobody can differentiate run forward, and raise JAX's own errors."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy import special

import scanrnn
from tests.compare import assert_same, score, value_and_gradients
from tests.step_table import B, H, T

U = 0.3 * jnp.eye(H)
HS, XS = jnp.linspace(0.1, 0.9, B * H).reshape(B, H), jnp.ones((T, B, H))
ERRORS = (NotImplementedError, RuntimeError, KeyError)


def by_jvp(error):
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        raise error("no derivative")

    return f


def by_vjp(error):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    def forward(x):
        raise error("no derivative")

    f.defvjp(forward, lambda _, ct: (ct,))
    return f


PLACES = {
    "carry": lambda f, h, x: jnp.tanh(x @ U + h @ U) + f(h),
    "input": lambda f, h, x: jnp.tanh(x @ U + h @ U) + f(x),
    "output": lambda f, h, x: f(jnp.tanh(x @ U + h @ U)),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("make", [by_jvp, by_vjp])
@pytest.mark.parametrize("error", ERRORS)
def test_step_whose_derivative_raises_an_error_runs_forward(error, make, place):
    f = make(error)

    def step(h, x):
        h = place(f, h, x)
        return h, h

    def loss(h, xs):
        return score(scanrnn.scan(step, h, xs))

    assert jnp.allclose(loss(HS, XS), score(lax.scan(step, HS, XS)), rtol=1e-12)
    with pytest.raises(error, match="no derivative"):
        jax.grad(loss, (0, 1))(HS, XS)
    assert "the step has no reverse-mode derivative" in str(
        scanrnn.plan(step, HS, XS, implementation="planned")
    )


@pytest.mark.parametrize("make", [by_jvp, by_vjp])
def test_derivative_that_raises_an_error_is_not_needed_for_what_does_not_move(make):
    f = make(RuntimeError)

    def step(u, carry, x):
        h, n = carry
        h = jnp.tanh(h @ u + x) + f(lax.stop_gradient(h))
        return (h + f(n), n + 1), h

    carry = HS, jnp.zeros((), jnp.float32)

    def in_weights(loss, outputs):
        return jax.jit(lambda x: jax.grad(lambda u: loss([u, *x[1:]]))(x[0]))

    assert_same((step, U, carry, XS), in_weights)


# Their derivative rules take floats only.
INTEGERS = {
    "fresnel": lambda h: special.fresnel(jnp.int32(10 * h))[0],
    "poch": lambda h: special.poch(h, 1),
    "hyp1f1": lambda h: special.hyp1f1(h, 1, 2),
    "xlog1py": lambda h: special.xlog1py(h, 1),
}


@pytest.mark.parametrize("f", INTEGERS.values(), ids=INTEGERS)
def test_special_function_of_integers_runs_forward(f):
    def step(u, h, x):
        h = jnp.tanh(x + h @ u + f(0.5 + 0.4 * jnp.tanh(h)))
        return h, h

    def outputs_only(loss, outputs):
        return jax.jit(outputs)

    assert_same((step, U, HS, XS), outputs_only)


def test_special_function_of_integers_has_the_gradients_of_lax_scan():
    def step(u, h, x):
        h = jnp.tanh(x + h @ u + INTEGERS["fresnel"](h))
        return h, h

    assert_same((step, U, HS, XS), value_and_gradients)


def test_rule_that_reads_a_traced_value_is_left_to_lax_scan():
    """JAX has such a rule only where it is traced; a plan would take it elsewhere."""

    def loss(scan, w, h, xs):
        @jax.custom_jvp
        def scaled(x):
            return x * w[0, 0]

        @scaled.defjvp
        def rule(primals, tangents):
            return scaled(*primals), tangents[0] * w[0, 0]

        def step(h, x):
            h = jnp.tanh(h @ w + scaled(x))
            return h, h

        return score(scan(step, h, xs))

    found, wanted = (
        jax.jit(jax.grad(functools.partial(loss, scan), (1, 2)))(U, HS, XS)
        for scan in (scanrnn.scan, lax.scan)
    )
    for got, want in zip(found, wanted, strict=True):
        assert jnp.allclose(got, want, rtol=1e-12)
    planned = functools.partial(scanrnn.scan, implementation="planned")
    with pytest.raises(ValueError, match="reads a traced value of another function"):
        jax.jit(functools.partial(loss, planned))(U, HS, XS)
