"""Loops with products as kernels for a GPU: by Pallas's interpreter, on a CPU."""

import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu import parts as _parts
from scanrnn.executors.gpu import triton
from scanrnn.executors.gpu.block_kernel import BatchView
from scanrnn.machines import MACHINES
from scanrnn.planner.emit import emit
from tests.test_executors_lanes import assert_equal_to_lax_scan

NAME = pallas_gpu.NAME
CELLS = {
    "elman": scanrnn.cells.elman(),
    "lstm": scanrnn.cells.lstm(),
    "lstm-norm": scanrnn.cells.lstm(norm="ba2016"),
    "lstm-mi": scanrnn.cells.lstm(integration="multiplicative"),
    "lstm-peephole": scanrnn.cells.lstm(peephole=True),
    "lstm-projection": scanrnn.cells.lstm(projection=16),
    "gru": scanrnn.cells.gru(),
    "gru-cho2014": scanrnn.cells.gru(dialect="cho2014"),
    "mgu": scanrnn.cells.mgu(),
    "ugrnn": scanrnn.cells.ugrnn(),
    "multiplicative_lstm": scanrnn.cells.multiplicative_lstm(dialect="krause2016"),
    "rhn": scanrnn.cells.rhn(depth=2),
    "residual": scanrnn.cells.residual(scanrnn.cells.lstm()),
}
QUICK = ("lstm", "gru")


def drawn(cell, T, B, H, dtype="float64"):
    keys = jax.random.split(jax.random.key(0), 3)
    params = cell.init(keys[0], H, H)
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), params)
    xs = jax.random.normal(keys[1], (T, B, H), dtype)
    carry = cell.initial_carry(params, xs[0])
    draw = functools.partial(jax.random.normal, keys[2], dtype=dtype)
    return params, jax.tree.map(lambda c: draw(c.shape), carry), xs


def slopes(cell, options, args):
    def loss(params, carry, xs):
        step = functools.partial(cell.step, params)
        outs = scanrnn.scan(step, carry, xs, plan=options)
        leaves = (leaf.astype(jnp.float64) for leaf in jax.tree.leaves(outs))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves)

    return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*args))


def assert_as_exact_as_lax_scan(cell, args, machine=None):
    """Gradients in narrow dtypes, against float64; `machine` is that of the kernels."""
    dtype = jax.tree.leaves(args)[0].dtype
    exact, theirs, ours = (
        slopes(cell, scanrnn.Options(machine=of, implementation=name), values)
        for of, name, values in (
            (None, "scan", jax.tree.map(lambda a: a.astype("float64"), args)),
            (None, "scan", args),
            (machine, NAME, args),
        )
    )
    slack = 4 * float(jnp.finfo(dtype).eps)
    for wanted, *both in zip(exact, theirs, ours, strict=True):
        assert both[1].dtype == dtype
        theirs, ours = (float(np.linalg.norm(np.ravel(a - wanted))) for a in both)
        assert ours <= 1.5 * theirs + slack * float(np.linalg.norm(np.ravel(wanted)))


def case(name, *values):
    """A case of a cell: those of an LSTM and of a GRU may be quick."""
    return pytest.param(name, *values, marks=() if name in QUICK else pytest.mark.slow)


# An LSTM and a GRU: one step, several, and examples that do not divide into programs.
BOTH = [
    *(case("lstm", 3, 3), case("lstm", 1, 2)),
    *(case("gru", 3, 3), case("gru", 4, 17)),
]


# `test_executors_gpu_cells` runs all but the projection with three steps. One step, or
# examples that do not divide into programs, are a matter of the kernel, not of a cell.
@pytest.mark.parametrize(
    ("name", "T", "B"),
    [
        *BOTH,
        case("lstm-norm", 4, 17),
        case("multiplicative_lstm", 4, 17),
        case("lstm-projection", 3, 3),
        case("lstm-projection", 1, 2),
        case("gru-cho2014", 1, 2),
    ],
)
def test_blocks_equal_lax_scan(name, T, B):
    cell = CELLS[name]

    def make(params):
        return functools.partial(cell.step, params)

    assert_equal_to_lax_scan(make, drawn(cell, T, B, 16), reverse=B == 17)


# A program for each example, or eight in one: cells by the products that a step has.
@pytest.mark.parametrize(
    ("name", "cores", "dtype"),
    [
        *(case(name, 132, "float32") for name in ("lstm", "gru-cho2014")),
        *(case(name, 1, "bfloat16") for name in ("gru", "lstm", "gru-cho2014")),
        *(case(name, 1, "bfloat16") for name in ("lstm-norm", "lstm-projection")),
        *(case(name, 1, "bfloat16") for name in ("multiplicative_lstm", "rhn")),
    ],
)
def test_blocks_are_as_exact_as_lax_scan(name, cores, dtype):
    """An example in each program, or eight; and matrices of half precision."""
    machine = dataclasses.replace(MACHINES["cpu"], cores=cores)
    assert_as_exact_as_lax_scan(
        CELLS[name], drawn(CELLS[name], 5, 3, 16, dtype), machine
    )


@pytest.mark.parametrize(
    ("B", "dtype", "memory", "programs"),
    [
        (128, "float32", 2**20, 128),
        (256, "float32", 2**20, 32),
        # The matrix unit for float64 takes no fewer than eight examples.
        (128, "float64", 2**20, 16),
        # Each program would read the matrices at every step.
        (128, "float32", 0, 16),
        (128, "bfloat16", 0, 128),
    ],
)
def test_blocks_have_one_example_while_there_are_cores(B, dtype, memory, programs):
    """Matrices of half precision lie in registers, and need no memory."""
    cell = CELLS["lstm"]
    params, carry, xs = drawn(cell, 2, B, 16, dtype)
    machine = dataclasses.replace(MACHINES["cpu"], cores=132, fast_memory=memory)
    step = functools.partial(cell.step, params)
    plan = scanrnn.plan(step, carry, xs, implementation=NAME, machine=machine)
    for body in emit(plan).values():
        view = pallas_gpu.view_of(triton.prepared(body).graph, machine)
        assert view.grid == (programs, 1)


def test_kernel_of_a_body_is_traced_once_for_a_plan(monkeypatch):
    """Whether it runs and what it costs are asked one after the other."""
    bodies, prepared = [], triton.prepared

    def counted(body):
        bodies.append(body)
        return prepared(body)

    monkeypatch.setattr(triton, "prepared", counted)
    cell = CELLS["lstm"]
    params, carry, xs = drawn(cell, 2, 3, 16)
    step = functools.partial(cell.step, params)
    scanrnn.plan(step, carry, xs, machine="h100")
    assert len(bodies) == len({*bodies}) == 3


def test_kernel_of_a_body_is_forgotten_with_it():
    W, xs = jnp.ones((16, 16)), jnp.ones((3, 2, 16))

    def step(h, x):
        h = jnp.tanh(h @ W + x)
        return h, h

    body = emit(scanrnn.plan(step, xs[0], xs, implementation=NAME))["for values"]
    assert pallas_gpu._viewed(body) is pallas_gpu._viewed(body)
    known = weakref.ref(body)
    del body
    gc.collect()
    assert known() is None


def test_blocks_run_a_batch_of_one():
    cell = CELLS["gru"]
    make = functools.partial(functools.partial, cell.step)
    assert_equal_to_lax_scan(make, drawn(cell, 3, 1, 16))


def test_blocks_have_fewer_examples_if_arrays_are_large():
    """A step that divides by a norm has no product by a weight."""

    def step(h, x):
        h = h / jnp.sqrt(1 + jnp.sum(h**2, -1, keepdims=True)) + x
        return h, h

    machine = dataclasses.replace(MACHINES["cpu"], cores=1)
    for H, programs in ((64, 1), (8192, 3)):
        xs = jax.random.normal(jax.random.key(0), (2, 3, H))
        plan = scanrnn.plan(step, xs[0], xs, implementation=NAME, machine=machine)
        bodies = emit(plan).values()
        graphs = [triton.prepared(body).graph for body in bodies]
        views = [pallas_gpu.view_of(g, plan.machine) for g in graphs]
        assert {view.grid for view in views} == {(programs, 1)}
    assert_equal_to_lax_scan(lambda _: step, ((), xs[0], xs))


def test_blocks_multiply_part_by_part():
    """Four gates are four products with the columns of one matrix."""
    cell = CELLS["lstm"]
    params, carry, xs = drawn(cell, 3, 2, 32, "bfloat16")
    step = functools.partial(cell.step, params)
    plan = scanrnn.plan(step, carry, xs, implementation=NAME)
    graph = triton.prepared(emit(plan)["for values"]).graph
    view = pallas_gpu.view_of(graph, plan.machine)
    assert isinstance(view, BatchView) and len(view.matrices) == 1
    run = functools.partial(scanrnn.scan, step, implementation=NAME)
    text = str(jax.make_jaxpr(run)(carry, xs))
    # Besides, each part is multiplied by ones twice, before the loop.
    assert text.count("dot_general") == 4 + 8
    both = (
        jax.jit(run)(carry, xs),
        jax.jit(lambda c, x: jax.lax.scan(step, c, x))(carry, xs),
    )
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        np.testing.assert_allclose(*(c.astype(np.float32) for c in (a, b)), atol=0.03)


def test_blocks_refuse_to_join_parts_on_an_axis_of_their_own():
    """A maxout of two products: Triton joins features alone."""
    W = jnp.ones((16, 16))

    def step(h, x):
        parts = jnp.concatenate([(h @ W + x)[:, None], (h @ W.T)[:, None]], 1)
        h = jnp.tanh(parts.max(1))
        return h, h

    with pytest.raises(ValueError, match="Triton cannot join parts"):
        scanrnn.plan(step, W, jnp.ones((3, 16, 16)), implementation=NAME)


@pytest.mark.parametrize(("data", "matrix"), [("bf16", "f4"), ("f4", "bf16")])
def test_blocks_round_no_factor_of_a_product(data, matrix):
    """Triton multiplies one dtype: the narrower one gets the digits of the other."""
    data, matrix = (jnp.bfloat16 if d == "bf16" else d for d in (data, matrix))
    keys = jax.random.split(jax.random.key(0), 3)
    draw, shapes = jax.random.normal, ((16, 16), (3, 16), (2, 3, 16))
    W, h, xs = (draw(k, s, "float32") for k, s in zip(keys, shapes, strict=True))
    W = W.astype(matrix)

    def step(h, x):
        both = h.astype(data), W
        z = jax.lax.dot(*both, preferred_element_type=jnp.float32)
        h = jnp.tanh(z + x)
        return h, h

    run = functools.partial(scanrnn.scan, step, implementation=NAME)
    both = jax.jit(run)(h, xs), jax.lax.scan(step, h, xs)
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_blocks_keep_the_parts_that_fit_their_fast_memory():
    """What does not fit takes turns in the room of the largest part."""
    cell = CELLS["lstm"]
    params, carry, xs = drawn(cell, 3, 2, 32)
    step = functools.partial(cell.step, params)
    plan = scanrnn.plan(step, carry, xs, implementation=NAME)
    graph = triton.prepared(emit(plan)["for values"]).graph
    part = 32 * 32 * 8
    for room, count in ((4, 4), (3, 2), (2, 1), (1, 0), (0, 0)):
        memory = _parts.EXCHANGE + room * part
        machine = dataclasses.replace(MACHINES["h100"], fast_memory=memory)
        kept = pallas_gpu.view_of(graph, machine).kept
        (parts,) = kept.fast_memory.values()
        assert [p.columns for p in parts] == [(32 * i, 32) for i in range(count)]
        assert bool(kept.read) == (count < 4)


@pytest.mark.parametrize("room", (0, 3))
def test_blocks_that_keep_some_parts_equal_lax_scan(room, monkeypatch):
    """Of the four parts of an LSTM's matrix none, or two, stay in fast memory."""
    memory = MACHINES["cpu"].fast_memory
    monkeypatch.setattr(_parts, "EXCHANGE", memory - room * 32 * 32 * 8)
    cell = CELLS["lstm"]
    make = functools.partial(functools.partial, cell.step)
    assert_equal_to_lax_scan(make, drawn(cell, 5, 3, 32))
