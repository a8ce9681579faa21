"""What a plan says about operations that no CUDA graph can hold."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

import scanrnn
from scanrnn.executors import pallas_gpu, planned
from scanrnn.machines import machine_named
from scanrnn.planner.report.recorded import unrecorded
from tests.step_table import build

N = 4
BEGIN = "Not in a CUDA graph: "


def names_of(text):
    """The operations that a plan's text names, in their order."""
    found = [line for line in text.splitlines() if line.startswith(BEGIN)]
    assert len(found) <= 1
    return found[0].removeprefix(BEGIN).split(".")[0].split(", ") if found else []


def told(step, machine="h100", **options):
    init, xs = jnp.zeros((N, N)), jnp.zeros((20, N, N))
    return names_of(str(scanrnn.plan(step, init, xs, machine=machine, **options)))


def rooted(h, x):
    """A step with a root of a matrix, whose derivative solves triangular systems."""
    square = jnp.tanh(h @ h.T) + N * jnp.eye(N)
    h = jnp.linalg.cholesky(square) + x @ jnp.ones((N, N))
    return h, h


def counted(h, x):
    """A step with a loop that runs as long as the carry says."""
    n = lax.while_loop(lambda n: n < h.sum(), lambda n: n + 1, jnp.int32(0))
    h = jnp.tanh(n * h + x @ jnp.ones((N, N)))
    return h, h


def test_root_of_a_matrix_is_named_and_so_is_what_its_derivative_solves():
    names = told(rooted, implementation="planned")
    assert names[0] == "cholesky" and "triangular_solve" in names
    assert len(names) == len({*names})


def test_loop_in_a_step_is_named():
    assert told(counted) == ["while"]


def test_plan_of_lax_scan_names_them_too():
    assert told(rooted, implementation="scan") == ["cholesky"]


def test_step_of_kernels_alone_names_nothing():
    step, params, init, xs = build("lstm")
    step = functools.partial(step, params)
    assert BEGIN not in str(scanrnn.plan(step, init, xs, machine="h100"))


@pytest.mark.parametrize("machine", ["cpu", "tpu v5e"])
def test_machines_without_such_graphs_name_nothing(machine):
    assert told(rooted, machine) == []


def scanned(length, unroll=1):
    """A function with a loop of `length` steps."""

    def function(x):
        return lax.scan(
            lambda c, _: (jnp.sin(c), None), x, length=length, unroll=unroll
        )[0]

    return function


def drawn(x):
    key = jax.random.fold_in(jax.random.key(0), x.sum().astype(int))
    return x * jax.random.bernoulli(key, 0.5, x.shape)


def by_platform(x):
    return lax.platform_dependent(x, default=jnp.sin, tpu=jnp.cos)


def in_a_kernel(x):
    def kernel(x, y):
        y[...] = lax.fori_loop(0, x.shape[0], lambda i, z: z + i, x[...])

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def called(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def chosen(x):
    return lax.cond(x.sum() > 0, jnp.linalg.cholesky, jnp.sin, x)


@pytest.mark.parametrize(
    ("function", "size", "names"),
    [
        (jnp.tanh, N, []),
        (drawn, N, []),
        (by_platform, N, []),
        (in_a_kernel, N, []),
        (scanned(1), N, []),
        (scanned(6, unroll=6), N, []),
        (scanned(6, unroll=0), N, []),
        (jnp.sort, N, []),
        (lambda x: lax.top_k(x, 2)[0], N, []),
        (lambda x: x @ x, N, []),
        (scanned(6), N, ["scan"]),
        (scanned(6, unroll=3), N, ["scan"]),
        (chosen, N, ["cond"]),
        (called, N, ["pure_callback"]),
        (jnp.linalg.inv, N, ["lu", "triangular_solve"]),
        (lambda x: jnp.fft.fft(x).real, N, ["fft"]),
        (lambda x: lax.igamma(x, x), N, ["igamma"]),
        (jax.jit(lambda x: jax.jit(jnp.linalg.cholesky)(x)), N, ["cholesky"]),
        (jax.checkpoint(jnp.linalg.cholesky), N, ["cholesky"]),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_operations_are_told_apart(function, size, names):
    eqns = jax.make_jaxpr(function)(jnp.ones((size, size))).jaxpr.eqns
    rules = planned.rules(machine_named("h100"))
    found = dict.fromkeys(unrecorded(eqns, rules))
    assert [n for n in found if n != "lu_pivots_to_permutation"] == names
    # A kernel of ours is one launch, whatever is in it.
    assert not [*unrecorded(eqns, pallas_gpu.rules(machine_named("h100")))]


def test_rows_that_are_copied_are_named():
    """XLA copies a row that a product reads as it is, and a carry that is stacked."""

    def read(h, x):
        return jnp.tanh(h + x @ h), None

    def stacked(h, x):
        return jnp.tanh(h @ jnp.ones((N, N)) + x), h

    def neither(h, x):
        h = jnp.tanh(h @ jnp.ones((N, N)) + x)
        return h, h

    def names(step, length, size):
        shapes = (size, N, N), (length, size, N, N)
        args = [jax.ShapeDtypeStruct(shape, float) for shape in shapes]
        options = {"machine": "h100", "implementation": "planned"}
        return names_of(str(scanrnn.plan(step, *args, **options)))

    large = 2**19 // N**2 * 4  # 16 MB: a trip has one step
    assert names(read, 40, large) == names(stacked, 40, large) == ["copies of rows"]
    assert names(neither, 40, large) == names(read, 40, 2) == []
