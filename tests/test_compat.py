"""Only one module uses what JAX does not promise; it works with this version of JAX."""

import dataclasses
import functools
import re
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives
from jax.sharding import PartitionSpec as P

import scanrnn
from scanrnn.planner.ir import compat
from scanrnn.planner.ir.graph import Env
from scanrnn.planner.trace import inline, trace
from tests.compare import score, split_floats
from tests.step_table import STEPS, T, build

PACKAGE = Path(__file__).parents[1] / "scanrnn"
FRAGILE = re.compile(
    r"jax\._src|\.ctx\b|get_bind_params|\.manager\b|Unspecified|key<|manual_axis_type"
    r"|\.abstract_eval\(|call_jaxpr|branches_platforms|num_consts|num_carry|ft_in"
    r"|remat2|pjit|closed_call|core_call"
)
X = jnp.arange(3.0)
QUICK = ("ln_lstm", "with_cond", "nested_scan")


def wave(x):
    return jnp.sin(x) * jnp.exp(x)


def traced(f, *args):
    (eqn,) = jax.make_jaxpr(f)(*args).eqns
    return eqn


def test_no_other_module_uses_names_that_jax_does_not_promise():
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "compat.py"
        for line in path.read_text().splitlines()
        if FRAGILE.search(line)
    ]
    assert found == []


@jax.custom_vjp
def identity(x):
    return 1 * x


identity.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
FUNCTIONS = {
    "primitive": jnp.tanh,
    "several results": lambda x: lax.split(x, (1, 2)),
    "jit": jax.jit(wave),
    "checkpoint": jax.checkpoint(wave),
    "custom_jvp": jax.nn.relu,
    "custom_vjp": identity,
    "scan": lambda x: lax.scan(lambda c, x: (c + x, c), 0.0, x),
    "cond": lambda x: lax.cond(True, jnp.sin, jnp.cos, x),
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_equation_is_evaluated_as_it_was_written(f):
    eqn = traced(f, X)
    values = [a.val if hasattr(a, "val") else X for a in eqn.invars]
    got = compat.bind(eqn, values)
    wanted = jax.tree.leaves(f(X))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b)


def test_equation_is_evaluated_in_the_context_it_was_written_in():
    with jax.threefry_partitionable(False):
        eqn = traced(lambda k: jax.random.key_data(k), jax.random.key(0))
        again = traced(lambda k: jax.random.key_data(k), jax.random.key(0))
    other = traced(lambda k: jax.random.key_data(k), jax.random.key(0))
    assert compat.context(eqn) == compat.context(again) != compat.context(other)
    seen = jax.make_jaxpr(lambda k: compat.bind(eqn, [k]))(jax.random.key(0))
    assert compat.context(seen.eqns[0]) == compat.context(eqn)


def test_equations_are_evaluated_each_in_its_context():
    def mixed(key):
        with jax.threefry_partitionable(False):
            first = jax.random.key_data(key)
        return first, jax.random.key_data(key)

    key = jax.random.key(0)
    written = jax.make_jaxpr(mixed)(key).jaxpr

    def run(key):
        env = Env(written.eqns, zip(written.invars, [key], strict=True))
        return env.read_all(written.outvars)

    found = [compat.context(e) for e in jax.make_jaxpr(run)(key).eqns]
    assert found == [compat.context(e) for e in written.eqns]
    assert found[0] != found[1]


def test_calls_and_checkpoints_are_recognised_and_opened():
    call, kept = traced(jax.jit(wave), X), traced(jax.checkpoint(wave), X)
    assert [compat.is_group(e) for e in (call, kept)] == [True, False]
    assert [compat.is_checkpoint(e) for e in (call, kept)] == [False, True]
    assert len(compat.program(call).eqns) == len(compat.program(kept).eqns) > 1
    closed = jax.make_jaxpr(wave)(X)
    made = compat.calling(traced(jnp.tanh, X), closed)
    assert made.primitive is primitives.closed_call_p and compat.is_group(made)
    np.testing.assert_allclose(compat.bind(made, [X])[0], wave(X))
    assert len(compat.program(made).eqns) == len(closed.eqns)


def test_call_of_any_name_is_inlined():
    closed = jax.make_jaxpr(wave)(X)
    graph = trace(lambda c, _: (jnp.tanh(c), None), X, None, 2).graph
    calls = tuple(compat.calling(e, closed) for e in graph.eqns)
    graph, _ = inline(dataclasses.replace(graph, eqns=calls))
    names = [e.primitive.name for e in graph.eqns]
    assert names == [e.primitive.name for e in closed.eqns]


def test_operands_of_a_scan_are_told_apart():
    def step(c, x):
        return (c[1] + X.sum() + x, c[0]), None

    eqn = traced(lambda c, x: lax.scan(step, c, x)[0][0], (0.0, 1.0), X)
    assert sum(compat.scan_arity(eqn)) + 1 == len(eqn.invars)
    assert compat.scan_arity(eqn)[1] == 2


def test_branches_for_platforms_are_recognised():
    def by_platform(x):
        return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

    eqns = jax.make_jaxpr(by_platform)(X).eqns
    assert any(map(compat.is_by_platform, eqns))
    assert not compat.is_by_platform(traced(FUNCTIONS["cond"], X))


def test_axes_over_which_a_value_varies_are_those_of_its_mesh():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    seen = []

    def look(x, y):
        seen.extend(map(jax.typeof, (x, y)))
        return x + y

    run = jax.shard_map(look, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    jax.eval_shape(run, X, X)
    assert list(map(compat.varying_axes, seen)) == [("data",), ()]
    assert compat.varying_axes(jax.typeof(X)) == ()
    struct = jax.ShapeDtypeStruct((3,), X.dtype, **compat.manual_axes(seen[0]))
    assert compat.varying_axes(struct) == ("data",)


def test_only_threefry_keys_are_counter_based():
    keys = {impl: jax.random.key(0, impl=impl) for impl in ("threefry2x32", "rbg")}
    assert compat.is_counter_based(keys["threefry2x32"].dtype)
    assert not compat.is_counter_based(keys["rbg"].dtype)
    assert not compat.is_counter_based(X.dtype)


def test_type_of_a_product_is_the_one_that_jax_gives_it():
    params = traced(jnp.dot, X, X).params
    assert compat.type_of(lax.dot_general_p, *[jax.typeof(X)] * 2, **params).shape == ()


@pytest.fixture
def arrays_in_equations():
    """Closed-over arrays are parts of equations, as is to become JAX's default."""
    name = "jax_use_simplified_jaxpr_constants"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [n if n in QUICK else slow(n) for n in STEPS])
def test_arrays_in_equations_are_weights_of_a_step(name, arrays_in_equations):
    step, params, init, xs = build(name)
    run, floats = functools.partial(step, params), split_floats(init)

    def slopes(scan):
        def loss(leaves):
            outs = scan(run, floats[1](leaves), xs, T if xs is None else None)
            return score(outs), split_floats(outs)[0]

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(floats[0])

    chex.assert_trees_all_close(slopes(scanrnn.scan), slopes(lax.scan), rtol=1e-6)


def test_arrays_that_equations_hold_are_constants_as_they_are_read(
    arrays_in_equations,
):
    first, second = jnp.eye(3), jnp.ones((3, 3))

    def f(x, second):
        closed = jax.make_jaxpr(lambda x: ((x @ first) @ second @ first, first))(x)
        held.append(closed)
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, x)

    held = []
    want = f(X, second)
    jax.jit(f)(X, second)
    for closed, variables in zip(held, (0, 1), strict=True):
        jaxpr, consts = compat.opened(closed)
        assert len(closed.consts) == variables and len(consts) == 2
        assert consts[0] is first
    jaxpr, consts = compat.opened(held[0])
    chex.assert_trees_all_close(jax.core.eval_jaxpr(jaxpr, consts, X), want)
