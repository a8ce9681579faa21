"""Matrix memories run by products of chunks, and equal `lax.scan`."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.executors import chunkwise
from scanrnn.planner.parallel.memories import memories
from scanrnn.planner.rule_groups import MemoryRules
from tests.affine_table import LOOPS
from tests.affine_table import T as STEPS
from tests.cell_table import CELLS, draw
from tests.compare import assert_same, value_and_gradients
from tests.test_affine_kinds import mostly_slow

CHUNKWISE = scanrnn.Options(implementation="chunkwise")
FACTORIES = ("gla", "mamba2", "mlstm", "deltanet", "gated_deltanet", "rwkv7")
CELLS_WITH = [n for n, r in CELLS.items() if r.factory in FACTORIES]
LOOPS_WITH = {"linear_attention", "retention", "delta_rule"}
QUICK = {"mlstm", "gla", "rwkv7"}


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks that do not divide the number of steps."""
    rules = chunkwise.rules

    def short(machine):
        return dataclasses.replace(rules(machine), memories=MemoryRules(steps=(3, 5)))

    monkeypatch.setattr(chunkwise, "rules", short)
    assert STEPS % 3 and STEPS % 5


# Every second cell runs from the last step, and with resets the others do.
REVERSE = {name: bool(i % 2) for i, name in enumerate(sorted(CELLS_WITH))}


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", mostly_slow(CELLS_WITH, QUICK))
def test_cell_by_products_of_chunks_equals_lax_scan(name):
    params, xs, carry = draw(CELLS[name])
    make = CELLS[name].cell.step, params, carry, xs
    assert_same(make, value_and_gradients, plan=CHUNKWISE, reverse=REVERSE[name])


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", sorted(LOOPS_WITH))
def test_loop_by_products_of_chunks_equals_lax_scan(name):
    _, step, init, xs = LOOPS[name]()
    make = (lambda _, carry, x: step(carry, x)), {}, init, xs
    assert_same(make, value_and_gradients, plan=CHUNKWISE)


def spanned(step):
    """A step with resets, which leaves the carry as it is where it does not count."""

    def run(params, carry, inputs):
        def choose(which, ours, theirs):
            which = which.reshape(-1, *[1] * (ours.ndim - 1))
            return jnp.where(which, ours, theirs)

        params, fresh = params
        x, starts, counts = inputs
        carry = jax.tree.map(functools.partial(choose, starts), fresh, carry)
        new, y = step(params, carry, x)
        return jax.tree.map(functools.partial(choose, counts), new, carry), y

    return run


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", mostly_slow(CELLS_WITH, {"gated_deltanet"}))
def test_resets_and_steps_that_do_not_count_equal_lax_scan(name):
    params, xs, carry = draw(CELLS[name])
    generator = np.random.default_rng(1)
    flags = [jnp.asarray(generator.random(xs.shape[:2]) < p) for p in (0.3, 0.7)]
    fresh = jax.tree.map(lambda a: 0.5 * a[::-1], carry)
    make = spanned(CELLS[name].cell.step), (params, fresh), carry, (xs, *flags)
    assert_same(make, value_and_gradients, plan=CHUNKWISE, reverse=not REVERSE[name])


def graph_of(step, init, xs):
    return scanrnn.plan(step, init, xs).stages.graph


@pytest.mark.slow
def test_every_matrix_memory_is_found_and_nothing_else():
    """Vectors, and memories that are outputs, are none."""
    found = set()
    for name, made in LOOPS.items():
        _, step, init, xs = made()
        found |= {name} if memories(graph_of(step, init, xs)) else set()
    assert found == LOOPS_WITH
    for name, row in CELLS.items():
        params, xs, carry = draw(row)
        graph = graph_of(functools.partial(row.cell.step, params), carry, xs)
        assert bool(memories(graph)) == (name in CELLS_WITH), name


B, D = 2, 3


def attention(write, read):
    """A step whose memory is `write(S, k, v, q)`, and whose output is `read(S, q)`."""

    def step(S, x):
        q, k, v = x
        S = write(S, k, v, q)
        return S, read(S, q)

    xs = tuple(jnp.ones((4, B, D)) for _ in range(3))
    return step, jnp.ones((B, D, D)), xs


def outer(k, v):
    return k[:, :, None] * v[:, None, :]


def read_by_product(S, q):
    return jnp.einsum("bk,bkv->bv", q, S)


DELTA_RULES = {
    "of what is kept": lambda S, k, v, q: (
        (kept := 0.9 * S) + outer(k, v - read_by_product(kept, k))
    ),
    "decay of the sum": lambda S, k, v, q: (
        0.9 * (S + 0.5 * outer(k, v - read_by_product(S, k)))
    ),
    "removed and then added": lambda S, k, v, q: (
        (S - outer(k, 0.3 * read_by_product(S, k))) * 0.8 + outer(q, v)
    ),
    "of a sum over features": lambda S, k, v, q: (
        (kept := 0.9 * S) + outer(0.3 * k, kept.sum(1))
    ),
    "rate of each key": lambda S, k, v, q: (
        (kept := jax.nn.sigmoid(q)[:, :, None] * S)
        + outer(k * jax.nn.sigmoid(v), 2 * v - read_by_product(kept, 0.3 * k))
    ),
    "several writes": lambda S, k, v, q: (
        S + outer(q, v) + outer(k, v - read_by_product(S, 0.3 * k)) - outer(v, k)
    ),
}


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(
    ("batch", "twice"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
        (2, True),
    ],
)
@pytest.mark.parametrize("name", DELTA_RULES)
def test_delta_rule_equals_lax_scan(name, batch, twice):
    write = DELTA_RULES[name]

    def step(_, S, x):
        q, k, v = x
        k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
        old = read_by_product(S, k) if twice else 0.0
        S = write(S, k, v, q)
        return S, read_by_product(S, q) + old

    generator = np.random.default_rng(0)
    init = jnp.asarray(generator.normal(size=(batch, D, D)))
    xs = tuple(jnp.asarray(generator.normal(size=(STEPS, batch, D))) for _ in range(3))
    make = step, {}, init, xs
    # From the last step for one of the batches.
    assert_same(make, value_and_gradients, plan=CHUNKWISE, reverse=batch == 1)


NEAR_MISSES = {
    "is an output": (lambda S, k, v, q: S + outer(k, v), lambda S, q: S),
    "read after tanh": (
        lambda S, k, v, q: S + outer(k, v),
        lambda S, q: read_by_product(jnp.tanh(S), q),
    ),
    "summed over both axes": (
        lambda S, k, v, q: S + outer(k, v),
        lambda S, q: jnp.sum(S * q[:, :, None], (1, 2)),
    ),
    "added matrix is full": (
        lambda S, k, v, q: S + jnp.tanh(outer(k, v)),
        read_by_product,
    ),
    "added is a function of what is read": (
        lambda S, k, v, q: S + outer(k, jnp.tanh(read_by_product(S, k))),
        read_by_product,
    ),
    "what is read enters twice": (
        lambda S, k, v, q: S + outer(k, v * read_by_product(S, k)) * S.sum(1)[:, None],
        read_by_product,
    ),
    "two corrections": (
        lambda S, k, v, q: S + outer(k, read_by_product(S, k)) - outer(q, S.sum(1)),
        read_by_product,
    ),
    "rate of each value": (
        lambda S, k, v, q: S + outer(k, v * (q - read_by_product(S, k))),
        read_by_product,
    ),
    "decay that reads it": (
        lambda S, k, v, q: S * S.sum(1)[:, None] + outer(k, v),
        read_by_product,
    ),
    "part of the sum is read": (
        lambda S, k, v, q: (part := S + outer(q, v)) + outer(k, part.sum(1)),
        read_by_product,
    ),
    "subtracted": (lambda S, k, v, q: outer(k, v) - S, read_by_product),
    "set to a matrix of the step": (
        lambda S, k, v, q: jnp.where(q[:, :, None] > 0, S, outer(k, k)) + outer(k, v),
        read_by_product,
    ),
}


REASONS = {
    "is an output": "it is an output of each step",
    "read after tanh": "tanh reads it",
    "summed over both axes": "it is summed over several axes",
    "added matrix is full": "what is added is no outer product",
    "added is a function of what is read": "what is added is not affine",
    "what is read enters twice": "several factors of what is added read it",
    "two corrections": "several terms of what is added read it",
    "rate of each value": "what is added is no outer product",
    "decay that reads it": "what is kept is not a product",
    "part of the sum is read": "a part of the sum is read by itself",
    "subtracted": "a step subtracts it",
    "set to a matrix of the step": "a step is not a sum",
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_is_refused_with_the_reason(name):
    step, init, xs = attention(*NEAR_MISSES[name])
    why = f"no leaf is a matrix memory: {REASONS[name]}"
    with pytest.raises(ValueError, match=why):
        scanrnn.scan(step, init, xs, implementation="chunkwise")


def dot_products(fun, *args):
    """The shapes of the results of all products in the loops of a program."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    found = []

    def walk(jaxpr, inside):
        for eqn in jaxpr.eqns:
            if inside and eqn.primitive.name == "dot_general":
                found.append(eqn.outvars[0].aval.shape)
            for sub in jax.extend.core.jaxprs_in_params(eqn.params):
                walk(sub, inside or eqn.primitive.name == "scan")

    walk(jaxpr, False)
    return found


def test_memory_is_known_at_the_ends_of_chunks_alone():
    """130 steps in chunks of 16 are nine trips, and no array has S at all steps."""
    step, init, _ = attention(lambda S, k, v, q: 0.9 * S + outer(k, v), read_by_product)
    xs = tuple(jnp.ones((130, B, D)) for _ in range(3))

    def loss(init, xs):
        S, y = scanrnn.scan(step, init, xs, implementation="chunkwise")
        return S.sum() + y.sum()

    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(init, xs))
    assert f"130,{B},{D},{D}" not in text and f"144,{B},{D},{D}" not in text
    assert f"[9,{B},{D},{D}]" in text
    assert len(dot_products(loss, init, xs)) == 4


@pytest.mark.parametrize(("features", "chosen"), [(32, "planned"), (64, "chunkwise")])
def test_memory_of_few_numbers_runs_in_a_loop_on_a_cpu(features, chosen):
    step, *_ = attention(DELTA_RULES["of what is kept"], read_by_product)
    xs = tuple(jax.ShapeDtypeStruct((64, 2, features), "float32") for _ in range(3))
    init = jax.ShapeDtypeStruct((2, features, features), "float32")
    plan = scanrnn.plan(step, init, xs)
    assert plan.executor.name == chosen
    found = scanrnn.plan(step, init, xs, machine="h100").candidates
    seconds = {c.name: c.seconds for c in found if c.refusal is None}
    assert seconds["chunkwise"] < seconds["planned"]


def test_query_that_is_larger_than_the_memory_is_refused():
    def step(S, x):
        q, k, v = x
        S = 0.9 * S + k[:, None, :, None] * v[:, None, None, :]
        return S, jnp.sum(S * q[..., None], 2)

    keys = jax.random.split(jax.random.key(0), 3)
    q = jax.random.normal(keys[0], (4, B, 2, D))
    k, v = (jax.random.normal(key, (4, B, D)) for key in keys[1:])
    with pytest.raises(ValueError, match="not summed over one axis"):
        init = jnp.ones((B, 1, D, D))
        scanrnn.scan(step, init, (q, k, v), implementation="chunkwise")


def test_half_precision_is_summed_in_single():
    step, init, _ = attention(lambda S, k, v, q: S + outer(k, v), read_by_product)
    keys = jax.random.split(jax.random.key(0), 3)
    xs = tuple(jax.random.normal(key, (500, B, D)) for key in keys)
    _, wanted = jax.lax.scan(step, jnp.zeros_like(init), xs)
    xs = tuple(x.astype("bfloat16") for x in xs)
    init = jnp.zeros_like(init, "bfloat16")
    S, y = scanrnn.scan(step, init, xs, implementation="chunkwise")
    assert S.dtype == y.dtype == jnp.bfloat16
    error = jnp.linalg.norm(y.astype(float) - wanted) / jnp.linalg.norm(wanted)
    assert error < 0.02


def test_plan_says_how_each_leaf_runs():
    params, xs, carry = draw(CELLS["mlstm"])
    step = functools.partial(CELLS["mlstm"].cell.step, params)
    text = str(scanrnn.plan(step, carry, xs, implementation="chunkwise"))
    assert "run by the executor chunkwise" in text
    assert "by products of chunks of" in text and "a matrix memory" in text
    assert text.count("runs step by step") == 2
    text = str(scanrnn.plan(step, carry, xs, machine="h100"))
    assert "estimates of a training step:" in text and "chunkwise" in text


def memory_step(by_key, S, x):
    """A memory with one decay for a matrix, or one for each key."""
    q, k, v, a = x
    a = a[..., None] if by_key else a[:, :1, None]
    S = a * S + k[..., None] * v[:, None]
    return S, jnp.einsum("bk,bkv->bv", q, S)


def of_memory(size, batch=2, steps=32):
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, a = (jax.random.normal(k, (steps, batch, size), "float32") for k in keys)
    return jnp.zeros((batch, size, size), "float32"), (q, k, v, jax.nn.sigmoid(a))


@pytest.mark.parametrize(
    ("by_key", "size", "chosen"),
    [
        (False, 16, "planned"),
        (False, 32, "chunkwise"),
        (True, 32, "planned"),
        (True, 64, "chunkwise"),
    ],
)
def test_matrices_of_few_numbers_run_in_a_loop_of_a_cpu(by_key, size, chosen):
    """If products read them, it is the size of each matrix that counts."""
    for batch in (4, 32):
        step = functools.partial(memory_step, by_key)
        plan = scanrnn.plan(step, *of_memory(size, batch), machine="cpu")
        assert plan.executor.name == chosen


def test_matrices_that_are_read_by_sums_run_in_chunks():
    def step(S, x):
        q, k, v, a = x
        S = a[..., None] * S + k[..., None] * v[:, None]
        return S, jnp.sum(S * q[..., None], 1)

    plan = scanrnn.plan(step, *of_memory(32, batch=4), machine="cpu")
    assert plan.executor.name == "chunkwise"
    assert "Without a gradient" not in str(plan)


def test_memory_without_a_gradient_is_a_loop_on_a_cpu():
    step, args = functools.partial(memory_step, False), of_memory(32, batch=4)

    def total(plan, *args):
        return scanrnn.scan(step, *args, plan=plan)[1].sum()

    def trips(plan, transform=lambda f: f):
        """The steps of the loops that run."""
        run = transform(functools.partial(total, plan))
        text = jax.jit(run).lower(*args).as_text()
        return {int(n) for n in re.findall(r"stablehlo.constant dense<(\d+)>", text)}

    plan = scanrnn.plan(step, *args, machine="cpu")
    assert "Without a gradient: one loop" in str(plan)
    assert 32 in trips(plan) and 32 not in trips(plan, jax.grad)
    named = scanrnn.plan(step, *args, machine="cpu", implementation="chunkwise")
    assert "Without a gradient" not in str(named)
    assert 32 not in trips(named)
