"""Steps of one structure share their plans; steps that differ in anything do not."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import scanrnn
import scanrnn.linen
import scanrnn.nnx
from scanrnn import _plans, _scan
from scanrnn.executors import EXECUTORS
from scanrnn.planner import trace
from scanrnn.planner.structure import structure
from tests import cell_table
from tests.compare import score
from tests.step_table import STEPS, B, H, T, bound, build

XS, INIT = jnp.ones((T, B, H)), jnp.ones((B, H))
# With a `jax.custom_vjp`: its rule is a function that JAX makes anew for each trace.
OWN_RULE = "custom_rules"


def traced(step, init=INIT, xs=XS):
    """A step as a graph; the function is new, as in a layer that is called again."""
    return trace(lambda c, x: step(c, x), init, xs, T).graph


def key_of(step, *args):
    return structure(traced(step, *args))


@pytest.mark.parametrize("name", sorted({*STEPS} - {OWN_RULE}))
def test_steps_written_again_share_their_plans(name):
    step, params, init, xs = build(name)
    plan = bound(scanrnn.plan, step, length=T)
    assert plan(params, init, xs) is plan(params, init, xs)


def test_step_with_a_reverse_rule_of_its_own_shares_no_plan():
    step, params, init, xs = build(OWN_RULE)
    assert key_of(functools.partial(step, params), init, xs) is None


def every_step():
    """All cells and all steps of the tables, traced."""
    for row in cell_table.CELLS.values():
        params, xs, carry = cell_table.draw(row)
        yield trace(functools.partial(row.cell.step, params), carry, xs, None)
    for name in STEPS:
        step, params, init, xs = build(name)
        yield trace(functools.partial(step, params), init, xs, T)


@pytest.mark.slow
def test_steps_of_equal_structure_are_printed_alike():
    """The oracle is JAX's printer, which shows all equations with their parameters."""
    texts = {}
    for step in every_step():
        key, text = structure(step.graph), str(step.source)
        if key is not None:
            assert texts.setdefault(key, text) == text
    assert len(texts) > 70


A, W = np.eye(H), np.ones((H, H))
ARRAY = jnp.arange(float(H))


def rounded(precision):
    return lambda c, x: (jnp.dot(c, A, precision=precision), x)


def scoped(name):
    def step(c, x):
        with jax.named_scope(name):
            return c + x, x

    return step


def called(name):
    def f(c):
        return jnp.sin(c)

    f.__name__ = name
    return lambda c, x: (jax.jit(f)(c), x)


def ruled(slope, **options):
    """A step with the identity, and a rule that says something else."""

    def step(c, x):
        @jax.custom_jvp
        def same(x):
            return x * 1.0

        def rule(primals, tangents):
            return same(*primals), slope(*primals, *tangents)

        same.defjvp(rule, **options)
        return same(c), x

    return step


def curved(curvature):
    """A function whose second derivative is of its own making; the first is not."""

    @jax.custom_jvp
    def slope(x, dx):
        return dx * 1.0

    @slope.defjvp
    def rule(primals, tangents):
        return slope(*primals), tangents[0] * curvature

    return slope


# Pairs that differ in one thing.
NEAR_MISSES = {
    "sign of zero": (lambda c, x: (c + 0.0, x), lambda c, x: (c + -0.0, x)),
    "literal": (lambda c, x: (c * 2.0, x), lambda c, x: (c * 3.0, x)),
    "operands": (lambda c, x: (c - x, x), lambda c, x: (x - c, x)),
    "outputs": (lambda c, x: (c, (c, x)), lambda c, x: (c, (x, c))),
    "order": (
        lambda c, x: (jnp.sin(c), jnp.cos(x)),
        lambda c, x: (lambda y: (jnp.sin(c), y))(jnp.cos(x)),
    ),
    "operation": (lambda c, x: (jnp.sin(c), x), lambda c, x: (jnp.cos(c), x)),
    "parameter": (
        lambda c, x: (lax.cumsum(c, 1), x),
        lambda c, x: (lax.cumsum(c, 1, reverse=True), x),
    ),
    "precision": (rounded(None), rounded("highest")),
    "weak type": (lambda c, x: (c, 1.0), lambda c, x: (c, jnp.float64(1.0))),
    "scope": (scoped("a"), scoped("b")),
    "name of a call": (called("a"), called("b")),
    "inside a call": (
        lambda c, x: (jax.jit(lambda c: c * 2.0)(c), x),
        lambda c, x: (jax.jit(lambda c: c * 3.0)(c), x),
    ),
    "inside a loop": (
        lambda c, x: (lax.fori_loop(0, 2, lambda _, c: c * 2.0, c), x),
        lambda c, x: (lax.fori_loop(0, 3, lambda _, c: c * 2.0, c), x),
    ),
    "derivative rule": (ruled(lambda x, dx: dx), ruled(lambda x, dx: -dx)),
    "second derivative": (ruled(curved(0.0)), ruled(curved(1.0))),
    "weights read": (lambda c, x: (c @ A @ A, x), lambda c, x: (c @ A @ W, x)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_steps_that_differ_in_one_thing_share_no_plan(name):
    one, other = map(key_of, NEAR_MISSES[name])
    assert one is not None and other is not None
    assert one != other


def test_types_of_inputs_are_part_of_the_structure():
    inputs = (
        (INIT, XS),
        (INIT[:1], XS[:, :1]),
        (INIT.astype("float32"), XS.astype("float32")),
        (INIT.astype("float32"), XS),
    )
    keys = [key_of(lambda c, x: (c, x), *each) for each in inputs]
    assert len({*keys}) == len(inputs)


NOT_COMPARED = {
    "callback": lambda c, x: (
        jax.pure_callback(np.sin, jax.ShapeDtypeStruct(c.shape, c.dtype), c),
        x,
    ),
    "effect": lambda c, x: (jax.debug.print("{}", c.sum()), (c, x))[1],
    "rule that sees zeros": ruled(lambda x, dx: dx, symbolic_zeros=True),
    "rule that raises": ruled(lambda x, dx: dx.no_such_name),
    "rule with an array": ruled(lambda x, dx: dx * ARRAY),
    "array in a call": lambda c, x: (jax.jit(lambda c: c * ARRAY)(c), x),
}


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_steps_with_what_cannot_be_compared_share_no_plan(name):
    assert key_of(NOT_COMPARED[name]) is None


def test_plans_of_one_structure_compute_with_their_own_arrays():
    def loss(scan):
        def run(weights, init, xs):
            for w in weights:
                _, xs = scan(lambda h, x, w=w: (jnp.tanh(h @ w + x),) * 2, init, xs)
            return score(xs)

        return run

    weights = list(0.4 * jax.random.normal(jax.random.key(0), (3, H, H)))
    args = weights, 0.1 * INIT, 0.3 * XS
    found, wanted = (
        jax.value_and_grad(loss(scan), (0, 1, 2))(*args)
        for scan in (scanrnn.scan, lax.scan)
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-12), found, wanted
    )


def counted(monkeypatch):
    """The plans that are made from here on."""
    made, make = [], _scan.make_plan

    def counting(*args):
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(_scan, "make_plan", counting)
    return made


def nnx_layers(n):
    model = scanrnn.nnx.LSTM(H, H, num_layers=n, rngs=nnx.Rngs(0))
    return lambda: model(jnp.ones((B, T, H), "float32"))


def linen_layers(n):
    model = nn.Sequential([scanrnn.linen.LSTM(H) for _ in range(n)])
    return lambda: model.init(jax.random.key(0), jnp.ones((B, T, H), "float32"))


@pytest.mark.parametrize("layers", [nnx_layers, linen_layers])
def test_equal_layers_are_planned_once(layers, monkeypatch):
    made = counted(monkeypatch)
    layers(1)()
    once = len(made)
    layers(4)()
    assert len(made) == once > 0


def test_settings_of_jax_are_part_of_what_is_shared():
    init, xs = INIT.astype("float32"), XS.astype("float32")
    plans = []
    for x64 in (True, False, True):
        with jax.enable_x64(x64):
            plans.append(scanrnn.plan(lambda c, x: (jnp.sin(c + x), x), init, xs))
    assert plans[0] is plans[2] is not plans[1]


def test_executor_that_is_registered_later_is_considered(monkeypatch):
    class Cheapest:
        NAME = "cheapest"
        rules = staticmethod(EXECUTORS["planned"].rules)
        lower = staticmethod(EXECUTORS["planned"].lower)

        def refuse(self, plan):
            return plan.unplanned

    def step(c, x):
        return jnp.tanh(c @ A + x @ W), c

    def names(same):
        f = step if same else lambda c, x: step(c, x)
        return [c.name for c in scanrnn.plan(f, INIT, XS).candidates]

    for same in (True, False):
        with monkeypatch.context() as later:
            assert "cheapest" not in names(same)
            later.setitem(EXECUTORS, "cheapest", Cheapest())
            assert "cheapest" in names(same)
        assert "cheapest" not in names(same)


def test_only_the_structures_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(_plans, "_MOST_STRUCTURES", 2)

    def plan(size):
        return scanrnn.plan(
            lambda c, x: (c + x, c), jnp.ones(size), jnp.ones((T, size))
        )

    first, second = plan(1), plan(2)
    assert plan(1) is first
    plan(3)
    assert plan(1) is first
    assert plan(2) is not second
