"""Kernels whose programs have a slice of the features each, and exchange them.

No GPU is here: all programs run at the same time, as examples of `jax.vmap`. How they
wait for one another is tested where there is a GPU (`benchmarks.device`).
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu import slice_costs, slice_kernel, slice_products, triton
from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.block_kernel import BatchView
from scanrnn.executors.gpu.slice_kernel import SliceView
from scanrnn.machines import MACHINES
from scanrnn.planner.emit import emit
from tests.test_executors_blocks import (
    BOTH,
    CELLS,
    assert_as_exact_as_lax_scan,
    case,
    drawn,
)
from tests.test_executors_lanes import assert_equal_to_lax_scan

NAME = pallas_gpu.NAME
# Its projection has other features than its state: they cannot be divided alike.
REFUSED = "lstm-projection"


@pytest.fixture(autouse=True)
def many_small_cores(monkeypatch):
    """No program has room for whole matrices, but there are as many as on a GPU."""

    def refuse(graph, machine):
        raise NotAKernelError("no room")

    monkeypatch.setattr(BatchView, "of", refuse)
    of, cores = SliceView.of, MACHINES["h100"].cores
    monkeypatch.setattr(
        SliceView,
        "of",
        lambda graph, machine: of(graph, dataclasses.replace(machine, cores=cores)),
    )


def views_of(cell, sizes, dtype="float64", machine=MACHINES["cpu"]):
    """How the bodies of a cell are divided. No weight is drawn."""
    T, B, H = sizes
    found = {}

    def look(params, carry, xs):
        step = functools.partial(cell.step, params)
        plan = scanrnn.plan(step, carry, xs, implementation=NAME, machine=machine)
        graphs = {n: triton.prepared(body).graph for n, body in emit(plan).items()}
        found.update(
            {n: pallas_gpu.view_of(g, plan.machine) for n, g in graphs.items()}
        )

    jax.eval_shape(look, *jax.eval_shape(lambda: drawn(cell, T, B, H, dtype)))
    return found


# Each cell once; three steps, one step and many examples in turn.
SIZES = ((3, 3), (4, 17), (1, 2))
ONCE = [name for name in CELLS if name not in (REFUSED, "lstm", "gru")]


@pytest.mark.parametrize(
    ("name", "T", "B"),
    [*BOTH, *(case(name, *SIZES[i % 3]) for i, name in enumerate(ONCE))],
)
def test_slices_equal_lax_scan(name, T, B):
    cell = CELLS[name]
    make = functools.partial(functools.partial, cell.step)
    assert_equal_to_lax_scan(make, drawn(cell, T, B, 32))


@pytest.mark.parametrize(
    ("name", "features"),
    [("gru", 48), pytest.param("lstm-norm", 96, marks=pytest.mark.slow)],
)
def test_slices_may_be_any_number(name, features):
    """Three slices, and six: Triton's arrays have a power of two."""
    cell = CELLS[name]
    assert {v.grid[0] for v in views_of(cell, (2, 3, features)).values()} <= {3, 6}
    make = functools.partial(functools.partial, cell.step)
    assert_equal_to_lax_scan(make, drawn(cell, 2, 3, features))


@pytest.mark.parametrize(
    ("name", "features", "split"),
    [
        ("lstm", 128, 4),
        ("gru", 96, 3),
        pytest.param("lstm-norm", 128, 4, marks=pytest.mark.slow),
        ("gru-cho2014", 64, 2),
    ],
)
def test_slices_may_divide_the_operands_of_products(name, features, split, monkeypatch):
    """Each multiplies the cotangents of one gate, for as many slices as gates."""
    monkeypatch.setattr(slice_costs, "LEAST_SAVING", 0)
    cell = CELLS[name]
    for key, view in views_of(cell, (2, 3, features)).items():
        splits = {e.params.get("split", 1) for e in view.graph.eqns}
        assert (split in splits) == (key == "in reverse"), key
    make = functools.partial(functools.partial, cell.step)
    assert_equal_to_lax_scan(make, drawn(cell, 3, 3, features))


def two_by_two(W):
    """Two arrays of features are multiplied at once, and give two gates."""

    def step(carry, x):
        z = jnp.concatenate(carry, 1) @ W + x
        h, c = jnp.tanh(z[:, :32]), jax.nn.sigmoid(z[:, 32:])
        return (h, c), h * c

    return step


@pytest.mark.parametrize("least", [0, 2**30])
def test_slices_multiply_several_operands_for_several_gates(least, monkeypatch):
    monkeypatch.setattr(slice_costs, "LEAST_SAVING", least)
    draw = functools.partial(jax.random.normal, jax.random.key(0))
    carry = draw((3, 32)), draw((3, 32)) / 2
    assert_equal_to_lax_scan(two_by_two, (draw((64, 64)) / 6, carry, draw((3, 3, 64))))


def in_groups(W):
    """A norm over groups of 16 features: each of them is a slice."""

    def step(h, x):
        z = (h @ W + x).reshape(-1, 2, 16)
        z = z - z.mean(-1, keepdims=True)
        scale = jax.nn.sigmoid(jnp.max(z, -1, keepdims=True))
        h = jnp.tanh(scale * z).reshape(h.shape)
        return h, h

    return step


def test_slices_do_not_add_what_is_of_one_slice():
    draw = functools.partial(jax.random.normal, jax.random.key(0))
    args = draw((32, 32)) / 6, draw((3, 32)), draw((3, 3, 32))
    assert_equal_to_lax_scan(in_groups, args)


def halves_of_heads(W, h, x):
    """The features of a head in two halves, as in a rotary embedding."""
    a, b = jnp.split((h @ W + x).reshape(-1, 2, 16), 2, -1)
    h = jnp.concatenate([a * jnp.sin(b), b * a], -1).reshape(h.shape)
    return jnp.tanh(h), h


def rows_of_the_batch(W, h, x):
    """In a batch of one: the carry and its square, one after the other."""
    z = jnp.concatenate([h, h**2], 0) @ W
    h = jnp.tanh(z[:1] + x) * jnp.sin(z[1:])
    return h, h


def weights_beside_the_carry(W, h, x):
    """In a batch of one, a row of weights looks like the carry."""
    both = jnp.concatenate([h, jnp.broadcast_to(W[:1], h.shape)], 1)
    h = jnp.tanh((both * 0.5) @ jnp.concatenate([W, W], 0) + x)
    return h, h


@pytest.mark.parametrize(
    ("step", "B"),
    [(halves_of_heads, 3), (rows_of_the_batch, 1), (weights_beside_the_carry, 1)],
)
def test_slices_refuse_features_in_another_order(step, B):
    draw = functools.partial(jax.random.normal, jax.random.key(0))
    W, h, xs = draw((32, 32)) / 6, draw((B, 32)), draw((3, B, 32))
    step = functools.partial(step, W)
    with pytest.raises(ValueError, match="another order|keep the batch|not of rows"):
        scanrnn.plan(step, h, xs, implementation=NAME)


def test_slices_refuse_more_steps_than_they_can_count():
    for view in views_of(CELLS["gru"], (2, 3, 32)).values():
        view.check_steps(10**6)
        with pytest.raises(NotAKernelError, match="too many exchanges"):
            view.check_steps(10**9)


def test_slices_keep_nan_in_a_maximum():
    """Triton's maximum would drop it."""
    found = slice_products.reduced(
        "reduce_max", jnp.array([[1.0, jnp.nan], [1.0, 2.0]])
    )
    np.testing.assert_array_equal(found, [[jnp.nan], [2.0]])


@pytest.mark.parametrize(
    "name", ["lstm", pytest.param("lstm-norm", marks=pytest.mark.slow)]
)
def test_slices_in_half_precision_are_as_exact_as_lax_scan(name):
    args = drawn(CELLS[name], 5, 3, 32, "bfloat16")
    assert_as_exact_as_lax_scan(CELLS[name], args)


@pytest.mark.parametrize("parts", [(2**8, 2**9), (2**9, 2**9), (2**8, 2**20)])
def test_slices_multiply_in_parts(parts, monkeypatch):
    """Operands are read in parts, some of them ahead."""
    for name, size in zip(("PART", "AHEAD"), parts, strict=True):
        monkeypatch.setattr(slice_products, name, size)
    monkeypatch.setattr(slice_products, "WHOLE", 0)
    cell = CELLS["lstm"]
    make = functools.partial(functools.partial, cell.step)
    assert_equal_to_lax_scan(make, drawn(cell, 3, 3, 64))


def norms(W):
    def step(carry, x):
        h, count = carry
        z = jnp.tanh(h @ W["a"] + x) @ W["b"]
        peak = jnp.max(jnp.abs(z), -1, keepdims=True)
        h = jnp.where(count > 1, z / (1 + peak), z - jnp.mean(z, -1, keepdims=True))
        return (h, count + 0.5), (h, peak)

    return step


def test_slices_exchange_norms_and_several_products():
    """Two products, a maximum and a mean; a number for each example in the carry."""
    draw = functools.partial(jax.random.normal, jax.random.key(0))
    weights = {"a": draw((32, 32)) / 6, "b": draw((32, 32)) / 5}
    xs = draw((4, 3, 32))
    step, carry = norms(weights), (xs[0], jnp.zeros((3, 1)))
    plan = scanrnn.plan(step, carry, xs, implementation=NAME)
    graph = triton.prepared(emit(plan)["for values"]).graph
    view = pallas_gpu.view_of(graph, plan.machine)
    assert isinstance(view, SliceView)
    # The last array counts the programs that have come to the exchanges.
    assert len(view.shared()) == 2 + 2 + 1
    assert_equal_to_lax_scan(norms, (weights, carry, xs))


def test_slices_have_resets_and_run_from_the_last_step():
    cell = CELLS["gru"]
    params, carry, xs = drawn(cell, 6, 3, 32)
    resets = jax.random.bernoulli(jax.random.key(1), 0.4, (6, 3))

    def outputs(implementation):
        def run(params, xs):
            layer = functools.partial(cell.step, params)

            def step(h, given):
                x, reset = given
                h = jax.tree.map(lambda a: jnp.where(reset[:, None], 0.0, a), h)
                return layer(h, x)

            options = scanrnn.Options(implementation=implementation)
            outs = scanrnn.scan(step, carry, (xs, resets), reverse=True, plan=options)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs))

        return jax.jit(jax.value_and_grad(run, (0, 1)))(params, xs)

    both = map(jax.tree.leaves, (outputs("scan"), outputs(NAME)))
    for wanted, found in zip(*both, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "grids"),
    [
        # Few examples for each program, as long as there are multiprocessors.
        (("lstm", (30, 32, 512), "bfloat16"), {(32, 4)}),
        # A slice of the matrix of 8 MB has 128 KB.
        (("lstm", (4, 64, 1024), "bfloat16"), {(64, 2)}),
        # The number of slices is no power of two.
        (("gru", (4, 16, 768), "bfloat16"), {(48, 2)}),
        # Programs for other examples come later.
        (("lstm", (4, 1024, 512), "bfloat16"), {(16, 16)}),
    ],
)
def test_slices_fit_an_h100(case, grids):
    name, sizes, dtype = case
    machine = dataclasses.replace(MACHINES["h100"], platform="cpu")
    views = views_of(CELLS[name], sizes, dtype, machine)
    assert {view.grid for view in views.values()} == grids
    assert all(v.seconds(machine.cores) > 0 for v in views.values())


@pytest.mark.parametrize(("cores", "grid"), [(132, (32, 4)), (20, (16, 1))])
def test_slices_are_no_more_than_the_gpu_here_can_run(cores, grid, monkeypatch):
    """A machine by name may have more multiprocessors: slices would never meet."""
    monkeypatch.setattr(slice_kernel, "cores_here", lambda machine: cores)
    given = (4, 64, 1024), "bfloat16", MACHINES["h100"]
    assert {view.grid for view in views_of(CELLS["elman"], *given).values()} == {grid}


def test_slices_refuse_matrices_that_no_gpu_holds():
    """There are at most 132 slices, so each has at least 64 features."""
    draw = jax.ShapeDtypeStruct
    W, h, xs = draw((8192, 8192), "f4"), draw((8, 8192), "f4"), draw((3, 8, 8192), "f4")

    def plan(W, h, xs):
        def step(h, x):
            h = jnp.tanh(h @ W + x)
            return h, h

        return scanrnn.scan(step, h, xs, implementation=NAME)

    with pytest.raises(
        ValueError, match="a slice of 64 features has 2048 KB of matrices"
    ):
        jax.eval_shape(plan, W, h, xs)


def test_slices_refuse_arrays_that_triton_cannot_have():
    """Three numbers for each example, beside the features."""
    draw = functools.partial(jax.random.normal, jax.random.key(0))
    W, h, xs = draw((32, 32)), draw((4, 32)), (draw((3, 4, 32)), draw((3, 4, 3)))

    def step(h, x):
        of_mean = jnp.tanh(x[1] * jnp.mean(h, -1, keepdims=True))
        h = jnp.tanh(h @ W + x[0] * jnp.sum(of_mean, -1, keepdims=True))
        return h, h

    with pytest.raises(ValueError, match="sizes must be powers of two"):
        scanrnn.plan(step, h, xs, implementation=NAME)


@pytest.mark.parametrize(
    ("dtype", "precision", "runs"),
    [
        ("float32", "highest", False),
        ("float32", "high", True),
        ("bfloat16", "highest", True),
    ],
)
def test_slices_multiply_on_tensor_cores_alone(dtype, precision, runs):
    W, h, xs = (jnp.ones(shape, dtype) for shape in ((32, 32), (4, 32), (3, 4, 32)))

    def step(h, x):
        h = jnp.tanh(jnp.matmul(h, W, precision=precision) + x)
        return h, h

    refused = pytest.raises(ValueError, match="would not run on tensor cores")
    with contextlib.nullcontext() if runs else refused:
        scanrnn.plan(step, h, xs, implementation=NAME)


def test_slices_refuse_features_that_cannot_be_divided():
    with pytest.raises(ValueError, match="cannot run this step"):
        views_of(CELLS[REFUSED], (3, 3, 32))
