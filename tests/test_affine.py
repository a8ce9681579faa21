"""Loops that are affine in their carry run in parallel, and equal `lax.scan`."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn import _plans
from scanrnn.executors import associative
from scanrnn.planner.parallel import affine
from tests.affine_table import LOOPS
from tests.cell_table import CELLS, draw
from tests.compare import assert_same, value_and_gradients
from tests.test_affine_kinds import kinds, mostly_slow

PARALLEL = scanrnn.Options(implementation="associative")


def as_made(name):
    _, step, init, xs = LOOPS[name]()
    return (lambda _, carry, x: step(carry, x)), {}, init, xs


QUICK = {"biquad", "longest_path", "bookkeeping"}
RUN = [n for n, made in LOOPS.items() if {*made().kinds} != {"sequential"}]


@pytest.mark.parametrize("name", mostly_slow(RUN, QUICK))
def test_loop_in_parallel_equals_lax_scan(name):
    """In one direction, in turn: which one is a matter of the scan."""
    reverse = bool(RUN.index(name) % 2)
    assert_same(as_made(name), value_and_gradients, plan=PARALLEL, reverse=reverse)


# Cells whose forward and reverse loops run in parallel. Of other cells, only the
# reverse loops may.
BOTH = {"mingru", "minlstm", "lru", "rglru", "qrnn", "mlstm", "gla", "mamba2"}
# The delta rules have few coupled features here, so their loops do too.
BOTH |= {"deltanet", "gated_deltanet", "rwkv7"}
DIAGONAL_IN_REVERSE = {"sru", "indrnn"}


def plan_of(row, **options):
    params, xs, carry = draw(row)
    step = functools.partial(row.cell.step, params)
    return scanrnn.plan(step, carry, xs, implementation="associative", **options)


@pytest.mark.parametrize(
    "name", mostly_slow(sorted(BOTH | DIAGONAL_IN_REVERSE), {"mingru", "sru"})
)
def test_cell_runs_in_parallel_where_it_is_affine(name):
    row = next(row for row in CELLS.values() if row.factory == name)
    plan = plan_of(row)
    ran = {n: associative.runs_in_parallel(body) for n, body in plan.bodies.items()}
    assert ran["in reverse"]
    assert ran["for values"] == ran["that records"] == (name in BOTH)


def score(row, implementation, reverse, params, xs, carry):
    step = functools.partial(row.cell.step, params)
    outs = scanrnn.scan(step, carry, xs, None, reverse, implementation=implementation)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)), outs


AFFINE = [n for n, row in CELLS.items() if row.factory in BOTH | DIAGONAL_IN_REVERSE]


@pytest.mark.parametrize("name", mostly_slow(AFFINE, {"lru"}))
def test_cell_in_parallel_equals_lax_scan(name):
    row, reverse = CELLS[name], len(name) % 2 == 0
    both = []
    for implementation in ("scan", "associative"):
        f = functools.partial(score, row, implementation, reverse)
        f = jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)
        both.append(jax.jit(f)(*draw(row)))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def leaky(params, h, x):
    """A leaky sum with resets: `reset` forgets everything, also infinities."""
    x, a, reset = x
    h = jnp.where(reset, params["init"], a * h) + x
    return h, h


# The factors of each step, made from normal numbers.
FACTORS = {
    "near one": lambda u: 1 - 1e-3 * jnp.abs(u),
    "near zero": lambda u: 1e-3 * u,
    "above one": lambda u: 1 + 0.02 * jnp.abs(u),
    "mixed signs": lambda u: jnp.sign(u) * (1 - 0.1 * jnp.abs(u)),
    "near the circle": lambda u: (1 - 1e-3) * jnp.exp(1j * u),
}


@pytest.mark.parametrize("length", mostly_slow([1, 2, 129, 1000], {1, 129}))
@pytest.mark.parametrize("factors", mostly_slow(FACTORS, {"mixed signs"}))
def test_error_is_that_of_the_bound(factors, length):
    """The error is within `4 u (t + 2 log2 T) S_t`; S is the sum of magnitudes."""
    keys = jax.random.split(jax.random.key(3), 3)
    draw = functools.partial(jax.random.normal, shape=(length, 5))
    a, x = FACTORS[factors](draw(keys[0])), draw(keys[1])
    reset = draw(keys[2]) > 2.0
    dtype = jnp.complex64 if jnp.iscomplexobj(a) else jnp.float32
    single = tuple(v.astype(dtype) for v in (x, a))
    init, params = jnp.ones(5, dtype), {"init": jnp.ones((), dtype)}
    step = functools.partial(leaky, params)
    xs = *single, reset
    _, h = scanrnn.scan(step, init, xs, implementation="associative")
    wide = jnp.complex128 if jnp.iscomplexobj(a) else jnp.float64
    # The exact sums of the numbers in single precision, and the sums of magnitudes.
    exact, sizes = (
        lax.scan(
            functools.partial(leaky, {"init": jnp.ones((), wide)}),
            jnp.ones(5, wide),
            (*(f(v.astype(wide)) for v in single), reset),
        )[1]
        for f in (lambda v: v, lambda v: jnp.abs(v).astype(wide))
    )
    steps = jnp.arange(1, length + 1)[:, None] + 2 * np.log2(max(length, 2))
    bound = 4 * jnp.finfo(jnp.float32).eps / 2 * steps * jnp.abs(sizes)
    assert jnp.all(jnp.abs(h - exact) <= bound)


def test_reset_forgets_infinities():
    a, x = jnp.full((6, 1), 1e300), jnp.ones((6, 1))
    reset = jnp.arange(6)[:, None] == 4
    step = functools.partial(leaky, {"init": jnp.zeros(())})
    carry, h = scanrnn.scan(step, x[0], (x, a, reset), implementation="associative")
    np.testing.assert_array_equal(h[4:, 0], [1.0, 1e300])
    assert jnp.isinf(h[1, 0])


@pytest.mark.parametrize("half", mostly_slow(["bfloat16", "float16"], {"bfloat16"}))
def test_carry_of_half_precision_is_summed_in_single(half):
    """The sums are not rounded in each step; only the results are, once."""
    half = jnp.dtype(half)

    def step(h, x):
        h = (0.999 * h.astype(jnp.float32) + x).astype(half)
        return h, h

    init, xs = jnp.zeros(3, half), jnp.full((400, 3), 0.01, jnp.float32)
    _, h = scanrnn.scan(step, init, xs, implementation="associative")
    exact = 10 * (1 - 0.999 ** np.arange(1, 401))[:, None]
    assert h.dtype == half
    np.testing.assert_allclose(h.astype(float), exact.repeat(3, 1), rtol=5e-3)


@pytest.mark.parametrize("half", mostly_slow(["bfloat16", "float16"], {"bfloat16"}))
@pytest.mark.parametrize("kind", ["diagonal", "sum", "block", "max-plus"])
def test_step_of_half_precision_is_summed_in_single(kind, half):
    """All of the step is in half precision; the sums over time are not."""
    half = jnp.dtype(half)
    steps = {
        "diagonal": lambda h, x: 0.96875 * h + x,
        "sum": lambda h, x: h + x,
        "block": lambda h, x: 0.96875 * h[::-1] + x,
        "max-plus": lambda h, x: jnp.maximum(h + x, 0),
    }

    def run(dtype, **options):
        step = lambda h, x: (steps[kind](h, x),) * 2  # noqa: E731
        xs = jnp.full((400, 2), 0.01, half).astype(dtype)
        return scanrnn.scan(step, jnp.zeros(2, dtype), xs, **options)

    plan = scanrnn.plan(lambda h, x: (steps[kind](h, x),) * 2, jnp.zeros(2, half),
                        jnp.zeros((400, 2), half))  # fmt: skip
    assert kinds(plan.stages.loop) == (kind,)
    wanted = run(jnp.float64, implementation="scan")
    for a, b in zip(run(half, implementation="associative"), wanted, strict=True):
        assert a.dtype == half
        np.testing.assert_allclose(a.astype(float), b, rtol=jnp.finfo(half).eps)


def test_parallel_loop_holds_no_loop_and_a_cpu_keeps_one():
    wanted, step, init, xs = LOOPS["advantages_purejaxrl"]()
    run = functools.partial(scanrnn.scan, step, init, xs)
    assert "scan[" not in str(jax.make_jaxpr(lambda: run(plan=PARALLEL))())
    assert "scan[" in str(jax.make_jaxpr(run)())
    many = [jax.ShapeDtypeStruct((500, *x.shape[1:]), x.dtype) for x in xs]
    for machine, wanted in (("h100", True), ("tpu v5e", True), ("cpu", False)):
        plan = scanrnn.plan(step, init, tuple(many), machine=machine)
        assert (plan.executor.name == "associative") == wanted


def test_number_of_python_to_start_from_is_as_good_as_an_array():
    def step(total, x):
        total = 0.9 * total + x
        return total, total

    outs = [
        jax.jit(lambda xs, n=n: scanrnn.scan(step, 0.0, xs, implementation=n))
        for n in ("scan", "associative")
    ]
    xs = jnp.arange(5.0)
    for a, b in zip(*(jax.tree.leaves(f(xs)) for f in outs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)


@pytest.mark.parametrize("name", ["square", "wide_matrix", "stopped_gradient"])
def test_loop_that_is_not_affine_is_refused_by_name(name):
    _, step, init, xs = LOOPS[name]()
    plan = scanrnn.plan(step, init, xs)
    assert any(g.why for g in affine.groups(plan.stages.loop))
    if name == "wide_matrix":
        with pytest.raises(ValueError, match="none of its loops is affine"):
            scanrnn.plan(step, init, xs, implementation="associative")


def test_what_is_found_of_a_step_is_forgotten_with_its_plan():
    def step(h, x):
        h = 0.5 * h + x
        return h, h

    plan = scanrnn.plan(step, jnp.ones(3), jnp.ones((5, 3)))
    graph = weakref.ref(plan.stages.graph)
    assert affine.groups(graph())[0].kind == "diagonal"
    del plan, step
    _plans._of_structures.clear()
    gc.collect()
    assert graph() is None


def test_custom_vjp_is_left_alone():
    @jax.custom_vjp
    def double(h):
        return 2 * h

    double.defvjp(lambda h: (2 * h, None), lambda _, ct: (ct,))

    def step(h, x):
        h = 0.1 * double(h) + x
        return h, h

    with pytest.raises(ValueError, match=r"jax\.custom_vjp"):
        scanrnn.plan(step, jnp.ones(3), jnp.ones((5, 3)), implementation="associative")


@pytest.mark.slow
def test_accelerate_runs_other_peoples_loops_in_parallel():
    _, step, init, xs = LOOPS["advantages_purejaxrl"]()

    def program(init, xs):
        return lax.scan(step, init, xs, reverse=True, unroll=16)

    fast = scanrnn.accelerate(program, plan=PARALLEL)
    for a, b in zip(
        *map(jax.tree.leaves, (fast(init, xs), program(init, xs))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert "scan[" not in str(jax.make_jaxpr(fast)(init, xs))
