"""What holds for the kernels of both devices. On a CPU, Pallas's interpreter runs them.

The sizes suit both: a kernel for a GPU multiplies powers of two, from 16 features on.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.executors import pallas_gpu, pallas_tpu
from scanrnn.planner.emit import emit
from tests.test_executors_blocks import drawn

KERNELS = (pallas_tpu.NAME, pallas_gpu.NAME)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
# The loop of the values, and that of their gradients.
BOTH = {"first_to_last", "last_to_first"}
T, B, H = 3, 2, 16
# One step with products, and one without.
CELLS = {"lstm": scanrnn.cells.lstm(), "indrnn": scanrnn.cells.indrnn()}
every_cell = pytest.mark.parametrize(
    "name", ["lstm", pytest.param("indrnn", marks=pytest.mark.slow)]
)


def loss(step_of, implementation, params, carry, xs):
    options = scanrnn.Options(implementation=implementation)
    outs = scanrnn.scan(step_of(params), carry, xs, plan=options)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs))


def losses(name, kernel):
    """The loss by a kernel, and by `lax.scan`."""
    step_of = functools.partial(functools.partial, CELLS[name].step)
    return [functools.partial(loss, step_of, n) for n in (kernel, "scan")]


def kernels_in(f, *args):
    """The names of the kernels of a program."""
    text = str(jax.make_jaxpr(f)(*args))
    return {name for name in BOTH if f"name={name}" in text}


def assert_close(found, wanted, rtol=1e-9):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def assert_equal(transformed, name, kernel, *args):
    """A transformed loss is that of `lax.scan`, and kernels run both of its loops."""
    ours, theirs = map(transformed, losses(name, kernel))
    assert kernels_in(ours, *args) == BOTH
    assert_close(jax.jit(ours)(*args), jax.jit(theirs)(*args))


def of_gradients(f):
    return jax.grad(f, argnums=(0, 1, 2))


@every_kernel
@every_cell
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_batch_of_gradients_by_a_kernel_equals_lax_scan(name, kernel, shared):
    """The weights are those of each example, or shared by all."""
    args = drawn(CELLS[name], T, B, H)
    batch = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a, -a]), args)
    axes = (None, 0, 0) if shared else 0
    batch = (args[0], *batch[1:]) if shared else batch

    def transformed(f):
        return jax.vmap(of_gradients(f), axes)

    assert_equal(transformed, name, kernel, *batch)


@pytest.mark.slow
@every_kernel
@every_cell
def test_gradient_of_a_batch_by_a_kernel_equals_lax_scan(name, kernel):
    params, carry, xs = drawn(CELLS[name], T, B, H)
    batch = jnp.stack([xs, 0.5 * xs, -xs])

    def transformed(f):
        return of_gradients(lambda *args: jax.vmap(f, (None, None, 0))(*args).sum())

    assert_equal(transformed, name, kernel, params, carry, batch)


@every_kernel
@every_cell
def test_kernel_in_a_checkpoint_equals_lax_scan(name, kernel):
    args = drawn(CELLS[name], T, B, H)
    assert_equal(lambda f: of_gradients(jax.checkpoint(f)), name, kernel, *args)


@every_kernel
@every_cell
def test_derivative_of_a_gradient_by_a_kernel_equals_lax_scan(name, kernel):
    args = drawn(CELLS[name], T, B, H)

    def transformed(f):
        moved = jax.tree.map(jnp.cos, args)
        return lambda *at: jax.jvp(of_gradients(f), at, moved)

    ours, theirs = map(transformed, losses(name, kernel))
    # JAX differentiates the reverse loop, which XLA runs then.
    assert "first_to_last" in kernels_in(ours, *args)
    assert_close(jax.jit(ours)(*args), jax.jit(theirs)(*args))


@every_kernel
@pytest.mark.parametrize(
    ("name", "reverse"),
    [
        ("gru", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("gru", False), ("indrnn", False), ("indrnn", True))
        ),
    ],
)
def test_kernel_with_resets_equals_lax_scan(name, kernel, reverse):
    cell = getattr(scanrnn.cells, name)()
    params, carry, xs = drawn(cell, 6, B, H)
    resets = jax.random.bernoulli(jax.random.key(1), 0.4, (6, B))
    assert resets.any() and not resets.all()

    def run(implementation, params, carry, xs):
        def step(h, given):
            x, reset = given
            h = jax.tree.map(lambda a: jnp.where(reset[:, None], 0.0, a), h)
            return cell.step(params, h, x)

        options = scanrnn.Options(implementation=implementation)
        outs = scanrnn.scan(step, carry, (xs, resets), reverse=reverse, plan=options)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs))

    ours, theirs = (
        jax.value_and_grad(functools.partial(run, n), (0, 1, 2))
        for n in (kernel, "scan")
    )
    assert kernels_in(ours, params, carry, xs) == BOTH
    assert_close(*(jax.jit(f)(params, carry, xs) for f in (ours, theirs)))


def narrow(W, b, h, x):
    """All examples have the same input, so that no row is as large as the carry."""
    h = jnp.tanh(h @ W + x + b)
    return h, None


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_kernel_of_a_tpu_sums_gradients_of_small_weights(dtype):
    """The gradients of all steps would be 64 rows of each, and the matrix has 16."""
    draw, keys = jax.random.normal, jax.random.split(jax.random.key(0), 3)
    W, xs = draw(keys[0], (H, H)) / 4, draw(keys[1], (T, 1, H))
    args = W, jnp.ones(H), draw(keys[2], (64, H)), xs
    args = jax.tree.map(lambda a: a.astype(dtype), args)
    options = scanrnn.Options(implementation=pallas_tpu.NAME)
    step = functools.partial(narrow, *args[:2])
    plan = scanrnn.plan(step, *args[2:], **vars(options))
    assert (H, H) in {v.aval.shape for v in plan.derivative.inner_weights}
    assert "or weights smaller than what every step would keep" in str(plan)
    # The sums are carried in float32 at least.
    carried = [v.aval for v in emit(plan)["in reverse"].graph.carry]
    shapes = {(aval.shape, str(aval.dtype)) for aval in carried}
    sums = "float32" if dtype == "bfloat16" else dtype
    assert shapes == {((64, H), dtype), ((H, H), sums), ((1, H), sums)}

    def slopes(implementation, W, b, h, xs):
        step = functools.partial(narrow, W, b)
        options = scanrnn.Options(implementation=implementation)
        final, _ = scanrnn.scan(step, h, xs, plan=options)
        return jnp.sum(jnp.sin(final.astype(jnp.float64)))

    by_kernel, by_scan = (
        jax.grad(functools.partial(slopes, n), (0, 1, 2, 3))
        for n in (pallas_tpu.NAME, "scan")
    )
    assert kernels_in(by_kernel, *args) == BOTH
    exact = jax.jit(by_scan)(*(a.astype("float64") for a in args))
    both = (jax.jit(f)(*args) for f in (by_kernel, by_scan))
    rounding = 4 * float(jnp.finfo(dtype).eps)
    for wanted, a, b in zip(exact, *both, strict=True):
        ours, theirs = (float(jnp.linalg.norm(c - wanted)) for c in (a, b))
        assert ours <= 1.5 * theirs + rounding * float(jnp.linalg.norm(wanted))


def test_kernel_of_a_tpu_sums_no_gradient_that_is_larger_than_its_rows():
    args = jnp.ones((H, H)), jnp.ones(H)
    step = functools.partial(narrow, *args)
    h, xs = jnp.ones((B, H)), jnp.ones((T, 1, H))
    plan = scanrnn.plan(step, h, xs, implementation=pallas_tpu.NAME)
    assert (H, H) not in {v.aval.shape for v in plan.derivative.inner_weights}


def test_kernels_of_a_tpu_are_exported():
    """No TPU is here: JAX lowers them, and its compiler would compile them later."""
    cell = CELLS["lstm"]
    args = drawn(cell, T, B, H, "float32")
    leaves, tree = jax.tree.flatten(args)
    options = scanrnn.Options(machine="tpu v5e", implementation=pallas_tpu.NAME)

    def of_leaves(leaves):
        params, carry, xs = tree.unflatten(leaves)
        step = functools.partial(cell.step, params)
        outs = scanrnn.scan(step, carry, xs, plan=options)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(outs))

    for f, kernels in ((of_leaves, 1), (jax.grad(of_leaves), 2)):
        exported = jax.export.export(jax.jit(f), platforms=["tpu"])(leaves)
        text = exported.mlir_module()
        assert text.count("@tpu_custom_call") == kernels
        assert "stablehlo.while" not in text
        again = jax.export.deserialize(exported.serialize())
        assert again.mlir_module().count("@tpu_custom_call") == kernels
