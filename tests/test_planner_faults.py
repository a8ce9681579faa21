"""Steps whose derivatives once failed or were wrong: each equals `lax.scan`."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse
from jax.scipy.special import betainc

import scanrnn
from scanrnn.planner.derivative.saved import POLICIES
from scanrnn.planner.ir import ops
from tests import step_table
from tests.compare import assert_same, score, value_and_gradients
from tests.jaxprs import equations
from tests.step_table import B, D, H, T
from tests.test_planner_corners import reverse_of_vmap


@pytest.fixture(scope="module")
def arrays():
    """Two recurrent matrices, an input matrix, a carry and inputs."""
    shapes = {"U": (H, H), "V": (H, H), "W": (D, H), "h": (B, H), "xs": (T, B, D)}
    return step_table.arrays(jax.random.key(3), **shapes)


def assert_equal(step, arrays, transform=value_and_gradients, **options):
    plan = scanrnn.Options(**options)
    assert_same((step, arrays, arrays["h"], arrays["xs"]), transform, plan=plan)


def test_part_of_a_split_that_is_known_is_not_made_again(arrays):
    """The maximum inside the softmax is requested but not used; the gate is saved."""

    def step(p, h, x):
        gate = jax.nn.softmax(h @ p["V"])
        h = jnp.tanh(x @ p["W"] + gate * (h @ p["U"]))
        return h, None

    assert_equal(step, arrays, residuals="everything")


def stopped(p, carry, x):
    """The incomplete beta function has a derivative only for its last operand."""
    h, _ = carry
    a, b = lax.stop_gradient((jnp.exp(p["W"][0]), 1 + h * h))
    h = betainc(a, b, jax.nn.sigmoid(x @ p["W"] + h @ p["U"]))
    return (h, carry[1]), h * lax.stop_gradient(h)


def counted(p, carry, x):
    h, n = carry
    h = jnp.tanh(x @ p["W"] + h @ p["U"] + lax.igamma(jnp.full_like(h, 2), h * h))
    return (h, n + 1.0), lax.polygamma(n, 2 + h)


@pytest.mark.parametrize("step", [stopped, counted], ids=lambda f: f.__name__)
def test_function_with_derivatives_for_some_operands_equals_lax_scan(arrays, step):
    def gradient(scan):
        def loss(p, h, xs):
            return score(scan(functools.partial(step, p), (h, jnp.ones_like(h)), xs))

        return jax.grad(loss, (0, 1, 2))(arrays, arrays["h"], arrays["xs"])

    chex.assert_trees_all_close(gradient(scanrnn.scan), gradient(lax.scan), rtol=1e-9)


def test_plan_of_a_step_without_a_gradient_for_everything_can_be_printed(arrays):
    init = arrays["h"], arrays["h"]
    plan = scanrnn.plan(functools.partial(counted, arrays), init, arrays["xs"])
    assert "the step has no reverse-mode derivative" in str(plan)


def around(h, value):
    """Put `h` between two columns of `value`, and keep the right column of these."""
    return lax.pad(h, value, [(0, 0, 0), (1, 1, 0)])[:, 1:]


PADS = {
    "carry": lambda p, h, x: around(p["V"][:B], h[0, 0]) + around(x @ p["W"], h[1, 1]),
    "weight": lambda p, h, x: (
        around(h @ p["U"], p["V"][0, 0]) + around(x, p["W"][0, 0])
    ),
    "input": lambda p, h, x: around(h @ p["U"], x[0, 0]) * around(0 * h, x[0, 1]),
    "readout": lambda p, h, x: around(h @ p["U"], (h @ p["V"])[0, 0]),
}


@pytest.mark.parametrize("pad", PADS.values(), ids=PADS)
def test_padding_with_a_value_that_moves_equals_lax_scan(arrays, pad):
    def step(p, h, x):
        z = pad(p, h, x)
        return jnp.tanh(x @ p["W"] + z[:, :-1]), jnp.sum(z * z, -1)

    assert_equal(step, arrays)
    assert_equal(step, arrays, reverse_of_vmap)


SPARSE = {
    "inputs": lambda p, h, x, m: (x @ p["W"] @ m + h @ p["U"], h),
    "recurrence": lambda p, h, x, m: (x @ p["W"] + h @ m, h),
    "readout": lambda p, h, x, m: (x @ p["W"] + h @ p["U"], h @ p["V"] @ m),
}


@pytest.mark.parametrize("where", SPARSE)
def test_product_with_a_sparse_matrix_equals_lax_scan(arrays, where):
    """JAX has no gradient of a batched sparse product with respect to the matrix."""
    places = jnp.array([[0, 1], [1, 2], [2, 0], [3, 3], [3, 0]])

    def step(p, h, x):
        m = sparse.BCOO((p["V"].ravel()[: len(places)], places), shape=(H, H))
        z, y = SPARSE[where](p, h, x, m)
        return jnp.tanh(z), y

    assert_equal(step, arrays)


def test_gradient_of_a_sparse_matrix_is_summed_in_the_loop(arrays):
    """Over time it has the matrix's places at each step: 13 times the bytes of JAX."""
    places = jnp.argwhere(jnp.ones((H, H), bool))

    def step(p, h, x):
        m = sparse.BCOO((p["V"].ravel(), places), shape=(H, H))
        h = jnp.tanh(x @ p["W"] + (m @ h.T).T)
        return h, h

    assert_equal(step, arrays, implementation="planned")
    bound = functools.partial(step, arrays)
    plan = scanrnn.plan(bound, arrays["h"], arrays["xs"], implementation="planned")
    assert (H * H,) in {v.aval.shape for v in plan.derivative.inner_weights}


@pytest.mark.parametrize("residuals", ["minimal", "recompute", "everything"])
def test_complex_products_outside_the_loop_equal_lax_scan(arrays, residuals):
    """`jax.checkpoint` raises for a complex result that a policy keeps."""

    def step(p, h, x):
        h = h * jnp.exp(1j * p["V"][0]) + x @ (p["W"] + 1j * p["V"])
        return h, jnp.tanh((h @ (p["U"] - 1j * p["V"])).real)

    complex_start = arrays | {"h": arrays["h"].astype(complex)}
    assert_equal(step, complex_start, implementation="planned", residuals=residuals)


def test_readout_products_are_kept_and_counted(arrays):
    """JAX's policies do not know `gemm`, the planner's own product."""

    def step(h, x):
        h = jnp.tanh(x @ arrays["W"] + h @ arrays["U"])
        return h, jnp.sin(h @ arrays["V"])

    def loss(h):
        return score(scanrnn.scan(step, h, arrays["xs"]))

    jaxpr = jax.make_jaxpr(jax.grad(loss))(arrays["h"]).jaxpr
    products = [e for e in equations(jaxpr) if e.primitive.name in ops.PRODUCTS]
    shapes = [e.outvars[0].aval.shape for e in products]
    # Outside: inputs, readout, and the cotangent of the readout. One in each loop.
    assert sum(math.prod(s) == T * B * H for s in shapes) == 3
    plan = scanrnn.plan(step, arrays["h"], arrays["xs"])
    kept, item = plan.residual_bytes[0], arrays["h"].dtype.itemsize
    assert kept == 2 * T * B * H * item


def test_a_memory_matrix_is_read_in_the_loop_and_not_stacked():
    """The value that a query reads is smaller than the memory of each step."""

    def step(memory, x):
        memory = 0.9 * memory + x[:, :, None] * x[:, None, :]
        return memory, jnp.sum(memory * x[:, None, :], axis=-1)

    plan = scanrnn.plan(step, jnp.zeros((2, 8, 8)), jnp.ones((5, 2, 8)))
    graph = plan.source if plan.stages is None else plan.stages.loop
    assert {v.aval.shape for v in graph.ys} == {(2, 8)}


def resampled(p, h, x):
    """`searchsorted` is a primitive in JAX 0.12, and not known to its lowering."""
    shares = jnp.cumsum(jax.nn.softmax(x.sum(1)))
    rows = jnp.searchsorted(shares, jnp.linspace(0.1, 0.9, B)).clip(0, B - 1)
    h = jnp.tanh(x @ p["W"] + h[rows] @ p["U"])
    return h, h


@pytest.mark.parametrize("transform", [value_and_gradients, reverse_of_vmap])
@pytest.mark.parametrize("machine", [None, "h100"])
def test_primitive_that_jax_expands_is_lowered(arrays, transform, machine):
    assert_equal(resampled, arrays, transform, machine=machine)


def test_primitive_that_jax_expands_is_exported(arrays):
    def run(p, h, xs):
        step = functools.partial(resampled, p)
        return scanrnn.scan(step, h, xs, implementation="planned")[1].sum()

    args = arrays, arrays["h"], arrays["xs"]
    exported = jax.export.export(jax.jit(run), platforms=["cpu", "cuda"])(*args)
    chex.assert_trees_all_close(exported.call(*args), run(*args))


@pytest.mark.parametrize("residuals", [None, *POLICIES])
def test_largest_of_a_row_is_compared_with_the_row_it_is_of(residuals):
    """A maximum was kept, and the row was computed again: they differed by rounding."""
    draw = np.random.default_rng(0).normal
    W, U, V, h, xs = (
        jnp.asarray(0.3 * draw(size=size))
        for size in ((16, 16), (16, 16), (16, 64), (3, 16), (4, 3, 16))
    )
    options = scanrnn.Options(residuals=residuals)

    def loss(weights, h, xs, scan):
        W, U, V = weights

        def step(h, x):
            u = h @ W + x
            a, b, c, d = jnp.split(u @ V, 4, -1)
            u = jax.nn.sigmoid(a) * jnp.tanh(b) + c * jax.nn.sigmoid(d)
            h = 0.5 * h + 0.5 * jnp.tanh(u @ U - jnp.max(u, -1, keepdims=True))
            return h, h * h

        return sum(leaf.sum() for leaf in scan(step, h, xs))

    def gradients(scan):
        f = functools.partial(loss, scan=scan)
        return jax.jit(jax.grad(f, argnums=(0, 1, 2)))((W, U, V), h, xs)

    ours = gradients(functools.partial(scanrnn.scan, plan=options))
    chex.assert_trees_all_close(ours, gradients(lax.scan), rtol=1e-11, atol=1e-11)


def long_sum(p, h, x):
    total = x @ p["W"] + h @ p["U"]
    for i in range(1100):
        total = total + 1e-3 * (i % 3) * h
    return jnp.tanh(total), total


def long_chain_above_gates(p, h, x):
    z = jnp.concatenate([h @ p["U"], h @ p["V"]], -1)
    for _ in range(400):
        z = z * 0.99 + x[..., :1]
    a, b = jnp.split(z, 2, -1)
    return jnp.tanh(1e-2 * a * b), a


@pytest.mark.parametrize("step", [long_sum, long_chain_above_gates])
def test_long_chains_equal_lax_scan(arrays, step):
    """They were followed by recursion, and Python allows a thousand calls."""
    bound, args = functools.partial(step, arrays), (arrays["h"], arrays["xs"])
    plan = scanrnn.Options(implementation="planned")
    pairs = scanrnn.scan(bound, *args, plan=plan), lax.scan(bound, *args)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9), *pairs)


def test_product_of_booleans_is_planned():
    A = jnp.eye(2 * H, H, dtype=bool)

    def step(reached, x):
        reached = jnp.concatenate([x, reached], -1) @ A
        return reached, reached

    init, xs = jnp.ones((B, H), bool), jnp.zeros((T, B, H), bool)
    for ours, theirs in zip(
        scanrnn.scan(step, init, xs), lax.scan(step, init, xs), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_coupled_small_integers_keep_their_type_in_parallel():
    def step(c, x):
        (a, b, d), m = c
        return ((b, d, a + b + d), 0.9 * m + x), m

    init = tuple(map(jnp.int32, (0, 1, 1))), jnp.ones(3)
    xs = jnp.linspace(0, 1, 27).reshape(9, 3)
    ours = scanrnn.scan(step, init, xs, implementation="associative")
    for a, b in zip(
        *map(jax.tree.leaves, (ours, lax.scan(step, init, xs))), strict=True
    ):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b)


def test_types_of_an_abstract_mesh_are_planned(arrays):
    mesh = jax.sharding.AbstractMesh((1,), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    init, xs = (
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place)
        for a in (arrays["h"], arrays["xs"])
    )
    assert scanrnn.machines.machine_of([init, xs]) == scanrnn.machines.machine_of([])
