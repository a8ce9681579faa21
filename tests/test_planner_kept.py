"""Values that a CPU's forward loop keeps are those that derivative rules read.

A rule is given the outputs that were kept, and does not compute them again. So these
steps are of functions whose rules read outputs, and of what is kept only on a CPU.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.scipy import linalg, special

import scanrnn
from tests.compare import assert_same, value_and_gradients
from tests.jaxprs import equations, loops

T, B, H = 4, 3, 4
EYE = jnp.eye(H)


def outer(h):
    """A positive definite matrix for each example."""
    return EYE + h[:, :, None] * h[:, None, :]


def cholesky(h, x):
    factor = jnp.linalg.cholesky(outer(h))
    return linalg.solve_triangular(factor, x[..., None], lower=True)[..., 0]


def eigenvalues(h, x):
    values, vectors = jnp.linalg.eigh(h.T @ h + x.T @ x + jnp.diag(jnp.arange(4.0)))
    return h @ vectors * values


def joined(h, x):
    return jnp.roll(h, 1, 1) * jnp.pad(h[:, 1:], ((0, 0), (0, 1))) + x[:, ::-1] * h


def gathered(h, x):
    rows = (jnp.abs(h[:, 0]) * 10).astype(int) % B
    return h[rows] * h + h.at[jnp.arange(B), rows].multiply(1.1) * x


def noise(h, x):
    key = jax.random.fold_in(jax.random.key(0), (jnp.abs(x[0, 0]) * 99).astype(int))
    return h * jax.random.normal(key, h.shape) + jax.random.uniform(key, h.shape) * x


def of_pairs(h, x):
    pairs = h[:, :, None] + x[:, None, :]
    return jax.nn.logsumexp(pairs, 1) + jax.nn.softmax(h) * pairs.max(2) - pairs.min(1)


def powers(h, x):
    positive = 1 + h**2
    return positive**x + jnp.cbrt(h) + jnp.sqrt(positive) * jnp.tan(0.1 * h)


def root(h, x):
    """The fixed point z of an equilibrium model; its derivative is another loop."""

    def solve(f, z):
        def improved(state):
            z, count = state
            return z - f(z), count + 1

        return jax.lax.while_loop(lambda s: s[1] < 40, improved, (z, 0))[0]

    def solve_linear(g, y):
        return jax.lax.fori_loop(0, 40, lambda _, z: z + y - g(z), y)

    def excess(z):
        return z - jnp.tanh(0.2 * z + h + x)

    return jax.lax.custom_root(excess, jnp.zeros_like(h), solve, solve_linear)


def singular_values(h, x):
    u, s, vt = jnp.linalg.svd(h.T @ h + x.T @ x + jnp.diag(jnp.arange(4.0)))
    return h @ (u * s) @ vt


STEPS = {
    "cholesky": cholesky,
    "cumulative": lambda h, x: jnp.cumsum(h, 1) * jax.lax.cumlogsumexp(h + x, 1),
    "eigenvalues": eigenvalues,
    "exponential": lambda h, x: x @ linalg.expm(0.1 * h.T @ h),
    "gathered": gathered,
    "inverse": lambda h, x: jnp.linalg.inv(outer(h)).sum(1) * x,
    "joined": joined,
    "largest": lambda h, x: jax.lax.top_k(h, 2)[0].sum(1, keepdims=True) * x,
    "logarithms": lambda h, x: (
        jnp.logaddexp(h, x) * jax.nn.softplus(h) + jnp.log1p(h**2)
    ),
    "noise": noise,
    "of_pairs": of_pairs,
    "orthogonal": lambda h, x: x @ jnp.linalg.qr(h.T @ h + EYE)[0],
    "powers": powers,
    "products": lambda h, x: (
        jnp.prod(1 + 0.1 * h, 1, keepdims=True) * jnp.cumprod(x, 1)
    ),
    "root": root,
    "segments": lambda h, x: (
        jax.ops.segment_sum(jnp.exp(h), jnp.array([0, 1, 0]), B) * x
    ),
    "singular_values": singular_values,
    "sorted": lambda h, x: jnp.sort(h, 1) * jnp.take(x, jnp.argsort(h[0]), 1),
    "special": lambda h, x: special.erfinv(0.5 * h) + special.gammaln(2 + h) * x,
    "solved": lambda h, x: jnp.linalg.solve(outer(h), x[..., None])[..., 0],
    "transformed": lambda h, x: jnp.fft.irfft(jnp.fft.rfft(h) * jnp.exp(x[:, :3]), H),
    "volumes": lambda h, x: jnp.linalg.slogdet(outer(h))[1][:, None] * x,
}


def second_order(loss, outputs):
    """The derivative of a gradient along a direction."""

    def along(floats):
        ones = jax.tree.map(jnp.ones_like, floats)
        return jax.jvp(jax.grad(loss), (floats,), (ones,))

    return jax.jit(along)


@functools.cache
def of(name):
    """The step of an entry, with a product by a weight, and its arguments."""
    function, keys = STEPS[name], jax.random.split(jax.random.key(0), 3)

    def step(params, h, x):
        h = jnp.tanh(function(h, x) + h @ params["W"])
        return h, jnp.sin(h)

    weights = {"W": 0.3 * jax.random.normal(keys[0], (H, H))}
    xs = jax.random.normal(keys[2], (T, B, H))
    return step, weights, 0.5 * jax.random.normal(keys[1], (B, H)), xs


@pytest.mark.parametrize("name", STEPS)
def test_gradients_by_kept_values_are_those_of_lax_scan(name):
    plan = scanrnn.Options(implementation="planned", residuals="minimal")
    assert_same(of(name), value_and_gradients, plan=plan)


# What is made again is read as what was kept: each step has one of them, in turn.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "residuals"),
    [(name, ("minimal", "recompute")[i % 2]) for i, name in enumerate(STEPS)],
)
def test_second_derivatives_by_kept_values_are_those_of_lax_scan(name, residuals):
    plan = scanrnn.Options(implementation="planned", residuals=residuals)
    assert_same(of(name), second_order, plan=plan)


def test_loop_that_finds_a_root_does_not_run_again_in_reverse():
    plan = scanrnn.Options(machine="cpu", implementation="planned")
    step, params, h, xs = of("root")

    def loss(params, h, xs):
        run = functools.partial(scanrnn.scan, plan=plan)
        return run(functools.partial(step, params), h, xs)[1].sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, h, xs).jaxpr
    reverse = [e for e in loops(jaxpr) if e.params["reverse"]]
    inner = (e.primitive.name for loop in reverse for e in equations(loop_of(loop)))
    assert reverse and "while" not in inner


def loop_of(scan):
    return scan.params["jaxpr"].jaxpr
