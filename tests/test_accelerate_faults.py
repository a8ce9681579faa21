"""Arguments and results that code may have, accelerated or not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import scanrnn

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def powers(x, n, scale=1.0):
    """Use numbers where Python needs them: as a length, a size, a condition."""
    steps = np.asarray(n).sum()
    if steps > 3:
        x = x * float(np.max(np.asarray(scale)))
    ys = lax.scan(lambda h, _: (jnp.tanh(h @ x.T @ x), h), x, None, int(steps))[1]
    return ys.sum(0) + np.zeros(x.shape)[: int(steps)].sum()


NUMBERS = {
    "python": 4,
    "numpy": np.int64(4),
    "array of no axes": np.array(4),
    "several": np.array([1, 3]),
    "jax": jnp.int32(4),
}


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"]
)
@pytest.mark.parametrize("n", NUMBERS.values(), ids=NUMBERS)
def test_arguments_that_python_needs_as_numbers_stay_numbers(n, transform):
    def run(wrap):
        return transform(lambda x: wrap(powers)(x, n, scale=n).sum())(X)

    np.testing.assert_allclose(run(scanrnn.accelerate), run(lambda f: f), rtol=1e-12)


def test_outputs_that_are_no_arrays_come_back_as_they_are():
    class Box:
        pass

    box, struct = Box(), jax.ShapeDtypeStruct((), float)

    def fn(x):
        total = lax.scan(lambda c, v: (c + v, None), jnp.zeros(3), x)[0]
        return {"y": total, "f": jnp.tanh, "s": "name", "n": None, "o": [box, struct]}

    got, wanted = scanrnn.accelerate(fn)(X), fn(X)
    np.testing.assert_allclose(got.pop("y"), wanted.pop("y"))
    assert got == wanted


def test_pullback_that_code_returns_is_one_of_arrays():
    def fn(x):
        return jax.vjp(
            lambda x: lax.scan(lambda c, v: (jnp.sin(c * v),) * 2, x[0], x), x
        )

    (_, ys), pull = scanrnn.accelerate(fn)(X)
    ct = jnp.ones_like(X[0]), jnp.cos(ys)
    np.testing.assert_allclose(pull(ct)[0], fn(X)[1](ct)[0], rtol=1e-12)


def test_what_code_writes_into_its_arguments_is_lost():
    notes = {"seen": []}

    def fn(x, notes):
        notes["seen"].append(x * 2)
        notes["more"] = x
        return lax.scan(lambda c, v: (c + v, None), x[0], x)[0]

    scanrnn.accelerate(fn)(X, notes)
    assert notes == {"seen": []}


def test_code_that_closes_over_what_moves_has_its_gradient():
    def mapped(x, u):
        def fn():
            return lax.scan(lambda h, _: (jnp.sin(h * u), h), x, None, 3)[1]

        return scanrnn.accelerate(fn)()

    def loss(u):
        return jnp.sum(jax.vmap(mapped, (0, None))(X, u) ** 2)

    def plain(u):
        steps = X, jnp.sin(X * u), jnp.sin(jnp.sin(X * u) * u)
        return sum(jnp.sum(h**2) for h in steps)

    np.testing.assert_allclose(jax.grad(loss)(2.0), jax.grad(plain)(2.0), rtol=1e-12)


@jax.custom_vjp
def weighted(x, ts):
    return x * ts.sum()


def _back(ts, ct):
    def add(i, total):
        return total + ct * ts[i]

    return lax.fori_loop(0, 3, add, jnp.zeros_like(ct)), jnp.zeros_like(ts)


weighted.defvjp(lambda x, ts: (weighted(x, ts), ts), _back)


def test_a_derivative_rule_may_index_a_constant_of_the_function():
    def loss(x):
        return weighted(x, jnp.array([0.0, 0.2, 0.3])).sum()

    found = jax.grad(scanrnn.accelerate(loss))(X)
    np.testing.assert_allclose(found, jax.grad(loss)(X))


def test_accelerated_function_outside_of_jit_drops_what_it_no_longer_needs():
    """One operation after the other, it holds the arrays of a step, and not of all."""
    alive, size = [], 1013

    def count():
        alive.append(sum(a.shape == (size,) for a in jax.live_arrays()))

    def f(x):
        for _ in range(20):
            x = jnp.sin(x) + 1
        jax.debug.callback(count)
        return x

    scanrnn.accelerate(f)(jnp.ones(size))
    jax.effects_barrier()
    assert len(alive) == 1 and alive[0] <= 3


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad])
def test_no_traced_value_outlives_its_trace(transform):
    def f(x):
        ys = lax.scan(lambda h, x: (jnp.tanh(h + x), h), jnp.zeros(3), x)[1]
        return ys.sum()

    x = jnp.ones((5, 3))
    with jax.checking_leaks():
        found = transform(scanrnn.accelerate(f))(x)
    np.testing.assert_allclose(found, transform(f)(x), rtol=1e-12)


class Counter(nnx.Module):
    def __init__(self):
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        self.calls[...] += 1
        return x + self.calls[...]


class Tied(nnx.Module):
    """One module, one weight and one stream, each under two names."""

    def __init__(self):
        self.a = self.b = Counter()
        self.v = self.w = nnx.Param(jnp.ones(()))
        self.r = self.q = nnx.Rngs(0)


@pytest.mark.parametrize("wrap", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_modules_that_share_a_module_still_share_it(wrap):
    def call(a, more, x):
        return a(x) + more["b"](x) + more["tied"].a(x) + more["tied"].b(x)

    def outputs(run):
        one, tied = Counter(), Tied()
        found = run(one, {"b": one, "tied": tied}, jnp.ones(2))
        return found, one.calls[...], tied.b.calls[...]

    chex.assert_trees_all_equal(outputs(wrap(scanrnn.accelerate(call))), outputs(call))


def test_update_of_a_shared_weight_is_seen_under_both_names():
    def step(model, x):
        grads = nnx.grad(lambda m: m.v[...] * x + m.w[...] * x)(model)
        model.v[...] -= 0.1 * grads.v[...]
        model.r.params()
        return grads.v[...], model.w[...]

    def outputs(run):
        model = Tied()
        return run(model, 3.0), model.w[...], model.q.default.count[...]

    chex.assert_trees_all_equal(outputs(scanrnn.accelerate(step)), outputs(step))
