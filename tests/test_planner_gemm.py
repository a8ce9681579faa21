"""`gemm`, a product with its own transpose, compared with `lax.dot_general`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import scanrnn
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.gemm import dot, gemm, gemm_p
from tests.jaxprs import equations

KEYS = jax.random.split(jax.random.key(0))

LAYOUTS = [(a, b) for a in (0, 1) for b in (0, 1)]


def operands(axes, dtype=jnp.float64, sizes=(3, 5, 4)):
    M, K, N = sizes
    keys = jax.random.split(jax.random.key(0))
    a, b = jax.random.normal(keys[0], (M, K)), jax.random.normal(keys[1], (K, N))
    a, b = a if axes[0] == 1 else a.T, b if axes[1] == 0 else b.T
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    wide = jnp.promote_types(dtype, jnp.float32)
    params = dict(
        dimension_numbers=numbers, precision=None, preferred_element_type=wide
    )
    return params, a.astype(dtype), b.astype(dtype)


def product(params):
    return functools.partial(gemm, params | {"out_sharding": None})


@pytest.mark.parametrize("axes", LAYOUTS)
def test_gemm_equals_dot_general_in_every_derivative(axes):
    params, a, b = operands(axes)
    chex.assert_trees_all_close(product(params)(a, b), dot(a, b, **params))
    check_grads(product(params), (a, b), order=2)


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)])
def test_gemm_is_batched_as_dot_general(in_axes):
    params, a, b = operands((1, 0))
    many = [
        x if i is None else jnp.stack([x, 2 * x])
        for x, i in zip((a, b), in_axes, strict=True)
    ]
    got, want = (
        jax.vmap(f, in_axes)(*many)
        for f in (product(params), functools.partial(dot, **params))
    )
    chex.assert_trees_all_close(got, want)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("columns", [256, 255])
def test_large_weight_gradient_is_the_product_it_stands_for(dtype, columns):
    """The size is large enough for the special form that XLA for CPU gets."""
    params, a, b = operands((0, 0), dtype, (128, 256, columns))
    got = jax.jit(product(params))(a, b)
    want = np.asarray(a, np.float64).T @ np.asarray(b, np.float64)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def large_product():
    """`a.T @ b`, so large that the transpose is made first, and its operands."""
    params = {"precision": None, "preferred_element_type": np.dtype("float32")}
    params["dimension_numbers"] = (((0,), (0,)), ((), ()))
    a, b = (jax.random.normal(key, (4096, 64), "float32") for key in KEYS)
    return jax.jit(functools.partial(gemm, params)), a, b


def test_large_weight_gradient_copies_its_left_operand_once():
    product, a, b = large_product()
    memory = product.lower(a, b).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1.1 * a.nbytes


def test_large_weight_gradient_is_exported():
    """JAX exports no constraint of a layout."""
    product, a, b = large_product()
    exported = jax.export.deserialize(jax.export.export(product)(a, b).serialize())
    np.testing.assert_allclose(exported.call(a, b), a.T @ b, rtol=1e-4, atol=1e-3)


def test_cotangent_of_a_mixed_product_is_not_rounded():
    params, a, b = operands((1, 0), jnp.float32)
    b = b.astype(jnp.bfloat16)
    ct = jax.random.normal(jax.random.key(2), (3, 4), jnp.float32)
    got, want = (
        jax.vjp(f, a, b)[1](ct)
        for f in (product(params), functools.partial(dot, **params))
    )
    chex.assert_trees_all_close(got[0], want[0], rtol=1e-6)


def half_step(params, h, x):
    cast = functools.partial(lax.convert_element_type, new_dtype=jnp.bfloat16)
    dots = [
        lax.dot(cast(v), cast(params[k]), preferred_element_type=jnp.float32)
        for k, v in (("w", x), ("u", h))
    ]
    h = jnp.tanh(sum(dots))
    return h, h


def half_problem():
    keys = jax.random.split(jax.random.key(1), 3)
    draw = functools.partial(jax.random.normal, dtype=jnp.float32)
    params = {"w": 0.3 * draw(keys[0], (8, 16)), "u": 0.3 * draw(keys[1], (16, 16))}
    return params, jnp.zeros((4, 16), jnp.float32), draw(keys[2], (12, 4, 8))


@functools.partial(jax.jit, static_argnums=0)
def gradient(scan, params, init, xs):
    def loss(params, init, xs):
        carry, ys = scan(functools.partial(half_step, params), init, xs)
        return jnp.sum(ys**2) + jnp.sum(carry)

    return jax.grad(loss, (0, 1, 2))(params, init, xs)


def test_bfloat16_gradients_are_as_near_to_float64_as_those_of_lax_scan():
    """Rounding cotangents adds no more error than rounding operands."""
    problem = half_problem()
    double = jax.tree.map(lambda a: a.astype(jnp.float64), problem)

    ours, theirs = (gradient(scan, *problem) for scan in (scanrnn.scan, lax.scan))

    def exact_loss(params, init, xs):
        def step(h, x):
            h = jnp.tanh(x @ params["w"] + h @ params["u"])
            return h, h

        carry, ys = lax.scan(step, init, xs)
        return jnp.sum(ys**2) + jnp.sum(carry)

    want = jax.jit(jax.grad(exact_loss, (0, 1, 2)))(*double)

    def errors(got):
        return [
            np.linalg.norm(g - w) / np.linalg.norm(w)
            for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
        ]

    assert max(errors(ours)) < 2 * max(errors(theirs)) < 0.04


def test_bfloat16_training_multiplies_nothing_but_bfloat16():
    jaxpr = jax.make_jaxpr(functools.partial(gradient, scanrnn.scan))(*half_problem())
    dots = [e for e in equations(jaxpr.jaxpr) if e.primitive.name in ops.PRODUCTS]
    assert len(dots) == 6
    assert {v.aval.dtype for e in dots for v in e.invars} == {jnp.dtype("bfloat16")}


def test_planned_scan_inside_a_step_is_read_as_its_products():
    """The outer planner sees `dot_general`, not the primitives of the inner plan."""
    params, a, b = operands((1, 0))

    def step(h, x):
        return jnp.tanh(h + gemm_p.bind(x, b, **params)), None

    xs = jnp.stack([a, 2 * a, 3 * a])
    init = jnp.zeros((3, 4))
    plan = scanrnn.plan(step, init, xs)
    assert [g.where for g in plan.gemms if g.phase == "forward"] == ["before"]
    chex.assert_trees_all_close(
        scanrnn.scan(step, init, xs)[0], lax.scan(step, init, xs)[0]
    )
