"""Programs that once failed, or took long to plan: faults found by reading code."""

import collections
import dataclasses
import sys
import time
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.planner import fission, loops, trace
from scanrnn.planner.ir import batching
from scanrnn.planner.ir.graph import Env
from scanrnn.planner.parallel import affine, leaves
from scanrnn.planner.parallel.factors import NoMemoryError, factors
from scanrnn.planner.parallel.memories import memories
from scanrnn.planner.passes import tidy

T, B, D = 5, 4, 16
KEYS = jax.random.split(jax.random.key(0), 4)
W, U = (0.3 * jax.random.normal(key, (D, D)) for key in KEYS[:2])


def test_vmap_over_nothing_gives_empty_results():
    """A counter in the carry is the same for the whole batch, which is empty here."""

    def step(carry, x):
        h, n = carry
        h = jnp.tanh(x @ W + h @ U)
        return (h, n + 1), h

    def run(scan, xs, **options):
        return scan(step, (jnp.zeros((B, D)), 0), xs, **options)

    nothing = jnp.zeros((0, T, B, D))
    got = jax.vmap(lambda xs: run(scanrnn.scan, xs, implementation="planned"))(nothing)
    want = jax.vmap(lambda xs: run(lax.scan, xs))(nothing)
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(one)] for one in (got, want)]
    assert shapes[0] == shapes[1] and got[1].shape == want[1].shape


def test_sum_in_half_precision_is_taken_under_strict_promotion():
    def run(**options):
        init, xs = jnp.zeros(8, jnp.bfloat16), jnp.ones((64, 8), jnp.bfloat16)
        return scanrnn.scan(lambda s, x: (s + x, None), init, xs, **options)[0]

    with jax.numpy_dtype_promotion("strict"):
        got = run(implementation="associative")
    np.testing.assert_array_equal(got, run(implementation="scan"))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_quantized_carry_is_not_affine(dtype):
    def step(h, x):
        h = 0.9 * h.astype(dtype).astype(h.dtype) + x
        return h, h

    traced = trace(step, jnp.zeros(8), jnp.ones((T, 8)), None)
    (group,) = affine.groups(traced.graph)
    assert group.kind == "sequential"


def test_carry_rounded_to_half_precision_stays_affine():
    def step(h, x):
        h = (0.9 * h + x).astype(jnp.bfloat16).astype(h.dtype)
        return h, h

    traced = trace(step, jnp.zeros(8), jnp.ones((T, 8)), None)
    (group,) = affine.groups(traced.graph)
    assert group.kind == "diagonal"


def test_squares_of_squares_have_few_factors():
    def step(h, x):
        a = x
        for _ in range(40):
            a = a * a
        h = a * h + x
        return h, h.sum(-1)

    traced = trace(step, jnp.zeros((B, D)), jnp.ones((T, B, D)), None)
    product = next(e for e in reversed(traced.graph.eqns) if e.primitive.name == "mul")
    assert len(factors(traced.graph, product.outvars[0])) == 2


def test_leaves_that_read_one_another_are_one_group():
    """The state of a training loop has as many. By sets of Python this took minutes."""

    def step(leaves, x):
        total = sum(leaves)
        return [leaf + total for leaf in leaves], total

    traced = trace(step, [jnp.float32(0)] * 600, jnp.ones(T), None)
    (part,) = leaves.components(traced.graph)
    assert part == tuple(range(600))


@pytest.mark.parametrize(
    "old, new, seen_through",
    [
        ("bfloat16", "float32", True),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("float8_e4m3fn", "float8_e5m2", False),
        ("float8_e4m3fn", "float32", True),
        ("float32", "int32", False),
        ("bool", "float32", False),
    ],
)
def test_factor_is_seen_through_a_cast_that_rounds_nothing(old, new, seen_through):
    def step(h, x):
        return h, x.astype(new)

    traced = trace(step, jnp.zeros(()), jnp.zeros((T, B, D), old), None)
    with jax.numpy_dtype_promotion("strict"):
        (factor,) = factors(traced.graph, traced.graph.ys[0])
    assert (factor.atom is traced.graph.xs[0]) == seen_through


def test_transpose_of_a_long_sum_is_a_sum_of_products():
    """By recursion, Python allowed no more than a thousand terms."""
    many = jnp.arange(1200.0 * 9).reshape(1200, 3, 3) / 1e4
    U = jnp.arange(9.0).reshape(3, 3)

    def step(h, x):
        total = U @ (h + x).T
        for one in range(len(many)):
            total = total + many[one]
        return total.T, None

    h, x = jnp.ones((3, 3)), jnp.full((2, 3, 3), 0.5)
    traced = trace(step, h, x, None)
    graph, _ = tidy.transpose_products(traced.graph)
    (dot,) = (e for e in graph.eqns if e.primitive.name == "dot_general")
    assert dot.params["dimension_numbers"][0] == ((0,), (0,))
    names = (*graph.weights, *graph.carry, *graph.xs)
    values = dict(zip(names, (*traced.weights, h, x[0]), strict=True))
    (got,) = Env(graph.eqns, values).read_all(graph.carry_out)
    np.testing.assert_allclose(got, step(h, x[0])[0], rtol=1e-12)


def powers(x):
    for _ in range(1200):
        x = x * (1 + 1e-3 * x)
    return x


def fibonacci(x):
    a, b = x, x + 1
    for _ in range(45):
        a, b = b, a * b
    return b


@pytest.mark.parametrize("f", [powers, fibonacci])
def test_product_of_many_factors_is_refused_and_not_taken_apart(f):
    """By recursion, one stopped with an error and the other went on for hours."""

    def step(h, x):
        return 0.9 * h + f(x), h

    traced = trace(step, jnp.ones((B, D)), jnp.ones((T, B, D)), None)
    graph = traced.graph
    with pytest.raises(NoMemoryError, match="too many factors"):
        factors(graph, graph.eqns[-1].invars[1])
    assert memories(graph) == {}


def optimizer(n):
    """A training step as a scan: n weights, each with its momentum."""

    def step(carry, x):
        weights, momenta = carry
        total = sum(w.sum() for w in weights) * x
        momenta = [0.9 * m + total for m in momenta]
        return ([w - m for w, m in zip(weights, momenta, strict=True)], momenta), total

    leaves = [jax.ShapeDtypeStruct((3,), "float32")] * n
    xs = jax.ShapeDtypeStruct((T,), "float32")
    return trace(step, (leaves, leaves), xs, None).graph


def test_sets_of_leaves_take_few_bytes():
    """A set of Python for each value took 30 bytes for each leaf that it reads."""
    graph = optimizer(n := 500)
    read = {id(of): of for of in leaves.leaves_read(graph).values()}
    assert sum(map(sys.getsizeof, read.values())) < len(graph.eqns) * n


class Equations(tuple):
    """Equations that count how often all of them are looked through."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()

    def __reversed__(self):
        self.looks += 1
        return iter(self[::-1])


def test_equations_are_looked_through_a_few_times_for_any_number_of_leaves():
    """It was three times for each leaf."""

    def step(carry, x):
        for _ in range(20):
            x = jnp.sin(x)
        return [leaf + i * x for i, leaf in enumerate(carry)], None

    traced = trace(step, [jnp.ones((4, 4))] * 100, jnp.ones((T, 4, 4)), None)
    eqns = Equations(traced.graph.eqns)
    graph = dataclasses.replace(traced.graph, eqns=eqns)
    assert {group.kind for group in affine.groups(graph)} == {"sum"}
    assert not memories(graph) and len(fission._loops(graph, most=4)) == 1
    assert eqns.looks < 10


def test_jax_is_asked_once_whether_it_can_batch_a_rule(monkeypatch):
    asked, works = [], batching._works

    def counted(eqn, axes, **options):
        asked.append((eqn.primitive.name, tuple(axes), *options))
        return works(eqn, axes, **options)

    @jax.custom_jvp
    def act(x):
        return jnp.tanh(x)

    act.defjvp(lambda primals, tangents: (act(*primals), tangents[0]))

    def step(h, x):
        return act(act(x) @ W + h @ U), h

    monkeypatch.setattr(batching, "_works", counted)
    scanrnn.plan(step, jnp.ones((B, D)), jnp.ones((T, B, D)))
    # There are two such equations.
    act = "custom_jvp_call", (0,)
    assert collections.Counter(asked) == {act: 2, (*act, "gradient"): 2}


def test_threads_that_differentiate_one_loop_make_its_variables_once(monkeypatch):
    """Two records had variables of their own, and neither knew those of the other."""

    def step(h, x):
        h = jnp.tanh(x @ W + h @ U)
        return h, h

    plan = scanrnn.plan(step, jnp.ones((B, D)), jnp.ones((T, B, D)))
    loop, shifts, calls = dataclasses.replace(plan.loop), loops._shifts, []

    def slow(*args):
        calls.append(args)
        time.sleep(0.2)
        return shifts(*args)

    monkeypatch.setattr(loops, "_shifts", slow)
    with futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: loop.recording, range(2))
    assert first is second and len(calls) == 1
