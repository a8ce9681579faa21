"""Buffer reuse: loops stack over arrays that are no longer needed: memory, values."""

import re

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import scanrnn
from scanrnn.executors.run.linear import linear
from scanrnn.machines import machine_of
from scanrnn.planner.ir.rows import Rows, pair_up
from tests.compare import is_float, score
from tests.step_table import ONE_GEMM, bound, build, lstm_pointwise

T = 37  # no other axis of a step has this size


def lengthened(name):
    """A step of the table with a sequence of T steps."""
    step, params, init, xs = build(name)
    if xs is not None:
        xs = jax.tree.map(lambda x: jnp.concatenate([x] * T)[:T], xs)
    return step, params, init, xs


def compiled(scan, make, **options):
    """The compiled gradient with respect to all parameters and inputs."""
    step, params, init, xs = make
    options |= {"length": T} if xs is None else {}
    leaves, tree = jax.tree.flatten((params, init, xs))
    moving = [i for i, leaf in enumerate(leaves) if is_float(jnp.asarray(leaf))]

    def loss(*leaves):
        return score(bound(scan, step, **options)(*tree.unflatten(leaves)))

    return jax.jit(jax.grad(loss, moving)).lower(*leaves).compile()


def copies_in_loops(text):
    """The copies, in the bodies of loops, of arrays of all steps."""
    bodies = set(re.findall(r"body=(%[\w.]+)", text))
    return [
        line
        for computation in text.split("\n\n")
        if computation.strip().split(" ")[0] in bodies
        for line in computation.splitlines()
        if re.search(rf"= \w+\[{T},[\d,]*\]\S* copy\(", line)
    ]


# Without steps that contain loops or solvers: batched over time, these need copies.
@pytest.mark.parametrize("name", [*ONE_GEMM, "gru_reset_before", "attention"])
def test_no_loop_copies_an_array_of_all_steps(name):
    """With such a copy, the time would grow with the square of the length."""
    program = compiled(scanrnn.scan, lengthened(name))
    assert not copies_in_loops(program.as_text())


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 2}], ids=str)
def test_no_loop_copies_an_array_of_all_steps_with_options(options):
    program = compiled(scanrnn.scan, lengthened("lstm"), **options)
    assert not copies_in_loops(program.as_text())


def test_copies_in_loops_are_found():
    """A row is read after another one was written. Late writing avoids this."""

    def body(array, t):
        row = array[t]
        array = array.at[t].set(jnp.tanh(row))
        return array.at[t, 0].add(jnp.sum(jnp.cos(row))), row.sum()

    array = jnp.ones((T, 4, 4))
    program = jax.jit(lambda array: lax.scan(body, array, jnp.arange(T)))
    text = program.lower(array).compile().as_text()
    assert copies_in_loops(text)


# The most temporary memory, as a share of that of lax.scan.
SHARES = {"lstm": 0.5, "ln_lstm": 0.5, "mi_lstm": 0.35, "gru": 0.75, "elman": 0.8}


@pytest.mark.parametrize("name", SHARES)
def test_temporary_memory_is_less_than_that_of_lax_scan(name):
    make = lengthened(name)
    ours, theirs = (
        compiled(scan, make).memory_analysis().temp_size_in_bytes
        for scan in (scanrnn.scan, lax.scan)
    )
    assert ours <= SHARES[name] * theirs


def test_nothing_is_copied_through_the_loops_for_large_weight_gradients():
    """Operands are transposed and carries shifted only after the reverse loop."""
    T, B, H = 30, 32, 128
    shapes = (H, 4 * H), (H, 4 * H), (T, B, H)

    def loss(W, U, xs):
        def step(carry, x):
            h, c = lstm_pointwise(x @ W + carry[0] @ U, carry[1])
            return (h, c), h

        return jnp.sum(scanrnn.scan(step, (xs[0] * 0, xs[0] * 0), xs)[1] ** 2)

    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = jax.jit(jax.grad(loss, (0, 1))).lower(*arrays).compile()
    taken = program.memory_analysis().temp_size_in_bytes
    # Four gates, h, c and the cotangent of h. Copies are made when c is no longer read.
    assert taken <= 7 * T * B * H * 4 + 3 * H * 4 * H * 4


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize(("length", "block"), [(1, 1), (2, 1), (5, 1), (6, 3), (4, 4)])
def test_late_writes_are_all_written(length, block, reverse, fenced):
    rows = Rows(length, reverse, trip_steps=block, fenced=fenced)
    values = jnp.arange(2.0 * length).reshape(length, 2)

    def body(state, trip):
        arrays, late = state
        arrays = rows.write(arrays, late, trip)
        here = lax.dynamic_slice_in_dim(arrays[0], trip * block, block)
        return (arrays, [here + 1]), here

    (arrays, late), read = lax.scan(
        body, ([values], rows.start([values])), jnp.arange(rows.trips), reverse=reverse
    )
    assert jnp.array_equal(read.reshape(values.shape), values)
    assert jnp.array_equal(rows.finish(arrays, late)[0], values + 1)


def test_pairs_are_of_one_type():
    def variables(*shapes):
        zeros = [jnp.zeros(shape) for shape in shapes]
        return jax.make_jaxpr(lambda *args: args)(*zeros).jaxpr.invars

    written, read = variables((2, 4), (2, 2), (2, 4)), variables((2, 4), (4, 2))
    assert pair_up(written, read) == {0: read[0]}


def _scaled(known, moving):
    (a,), (x, y) = known, moving
    return [jnp.sin(a) * x + y, a * y]


def _scaled_back(known, cts):
    (a,), (u, v) = known, [0.0 if ct is None else ct for ct in cts]
    return [jnp.sin(a) * u, u + a * v]


LINEAR = linear(_scaled, lambda *_: _scaled_back, machine_of())


@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        jax.jacfwd,
        lambda f: jax.jacfwd(jax.grad(f)),
        lambda f: jax.jacrev(jax.grad(f)),
        lambda f: jax.vmap(jax.grad(f), (0, None, 0)),
        lambda f: jax.grad(lambda *args: jnp.sum(jax.vmap(f, (0, None, None))(*args))),
        lambda f: jax.grad(jax.checkpoint(f), (0, 1, 2)),
    ],
    ids=["grad", "jacfwd", "fwd_rev", "rev_rev", "vmap", "vmap_inside", "remat"],
)
def test_linear_function_has_the_derivatives_of_its_forward(transform):
    args = tuple(jax.random.normal(jax.random.key(i), (3,)) for i in range(3))

    def loss(function, a, x, y):
        u, v = function([a], [x, y])
        return jnp.sum(jnp.sin(u) * v + jnp.cos(u))

    ours = transform(lambda *args: loss(LINEAR, *args))(*args)
    theirs = transform(lambda *args: loss(_scaled, *args))(*args)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jnp.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_gradient_runs_the_transpose_that_was_given():
    def wrong(known, cts):
        return [7.0 * x for x in _scaled_back(known, cts)]

    def loss(function, x):
        return jnp.sum(function([x], [2 * x, x])[0] * 3)

    x = jnp.ones(3)
    inner = jax.grad(
        lambda y: jnp.sum(
            linear(_scaled, lambda *_: wrong, machine_of())([x], [y, y])[0]
        )
    )(x)
    assert jnp.allclose(inner, 7 * (jnp.sin(x) + 1))
    assert jax.grad(lambda x: loss(LINEAR, x))(x).shape == x.shape


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["lstm", "elman", "ln_lstm"])
def test_gradient_under_shard_map_on_one_device_equals_lax_scan(name, check_vma):
    """For values that vary over a mesh axis, JAX's own transpose is used."""
    step, params, init, xs = build(name)
    mesh = jax.make_mesh((1,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": (P(), P("b"), P(None, "b")), "out_specs": P(None, "b")}

    def gradient(scan):
        def run(params, init, xs):
            return bound(scan, step)(params, init, xs)[1]

        mapped = jax.shard_map(run, mesh=mesh, check_vma=check_vma, **specs)
        return jax.jit(jax.grad(lambda *args: score(mapped(*args)), (0, 1, 2)))

    ours, theirs = (gradient(s)(params, init, xs) for s in (scanrnn.scan, lax.scan))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-9, atol=1e-9)


# The axis of two examples and that of T=5 steps differ in size, so order errors show.
VMAPS = {
    "grad_of_vmap": lambda f: jax.grad(lambda *a: jnp.sum(jax.vmap(f, (0, None))(*a))),
    "vmap_of_grad": lambda f: jax.vmap(jax.grad(f), (0, None)),
    "grad_of_vmap_of_grad": lambda f: jax.grad(
        lambda *a: score(jax.vmap(jax.grad(f, 1), (0, None))(*a))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("transform", VMAPS)
@pytest.mark.parametrize("name", ["lstm", "ln_lstm", "gru", "elman"])
def test_batched_gradient_equals_lax_scan(name, transform):
    step, params, init, xs = build(name)
    some = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.3 * leaf]), params)

    def gradient(scan):
        def loss(params, xs):
            return score(bound(scan, step)(params, init, xs))

        return jax.jit(VMAPS[transform](loss))

    ours, theirs = (gradient(scan)(some, xs) for scan in (scanrnn.scan, lax.scan))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-8, atol=1e-9)
