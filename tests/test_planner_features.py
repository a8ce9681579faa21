"""Matrix products of a loop with features first: correct, and only where it pays."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn.executors import _xla, associative, pallas_gpu, pallas_tpu, planned
from scanrnn.machines import MACHINES
from scanrnn.planner.rule_groups import MB, FeatureRules
from tests.compare import assert_same, training_jaxpr, value_and_gradients
from tests.jaxprs import gemms, loops
from tests.step_table import build
from tests.test_planner_generated import as_a_user, check_gradients, examine
from tests.test_planner_transforms import TRANSFORMS
from tests.tiers import one_in

NAMES = ["lstm", "ln_lstm", "gru", "gru_reset_before", "output_head", "mi_lstm"]


ANY = (1, 2**31)


def put_first(monkeypatch, loop):
    """Put features first for matrices of any size; `loop`: for whole loops of which."""
    first = FeatureRules(least=1, side=1, batch=ANY, loop=loop)
    rules = dataclasses.replace(_xla.CPU, features_first=first)
    monkeypatch.setattr(_xla, "_on_cpu", lambda machine: rules)


@pytest.fixture(params=[None, ANY], ids=["products", "loops"])
def always(monkeypatch, request):
    """Put features first: in products, or in whole loops."""
    put_first(monkeypatch, request.param)


@pytest.fixture
def whole(monkeypatch):
    """Put features first in whole loops."""
    put_first(monkeypatch, ANY)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", one_in(2, NAMES))
def test_features_first_equals_lax_scan(always, name, reverse):
    assert_same(build(name), value_and_gradients, reverse=reverse)


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_features_first_equals_lax_scan_under(always, transform):
    assert_same(build("lstm"), transform)


@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("name", one_in(2, [*NAMES, "elman"]))
def test_orientation_that_is_asked_for_equals_lax_scan(name, asked, reverse):
    options = scanrnn.Options(features_first=asked, implementation="planned")
    assert_same(build(name), value_and_gradients, plan=options, reverse=reverse)


@pytest.mark.slow
@pytest.mark.parametrize("rules", [_xla.GPU, _xla.TPU], ids=["gpu", "tpu"])
def test_orientation_equals_lax_scan_under_rules_of_other_machines(monkeypatch, rules):
    """A CPU runs the loops that a GPU or a TPU would run."""
    monkeypatch.setattr(_xla, "_on_cpu", lambda machine: rules)
    options = scanrnn.Options(features_first=True, implementation="planned")
    for name in ("lstm", "ln_lstm"):
        assert_same(build(name), value_and_gradients, plan=options)


def bodies_of(name, **options):
    step, params, init, xs = build(name)
    f = functools.partial(step, params)
    plan = scanrnn.plan(f, init, xs, implementation="planned", **options)
    return plan, plan.bodies.values()


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
def test_orientation_that_is_asked_for_is_that_of_all_loops(machine):
    plan, bodies = bodies_of("lstm", machine=machine, features_first=True)
    assert len(bodies) == 3 and all(body.features_first for body in bodies)
    text = plan.describe(long=True)
    assert text.count("all with the features first, as asked for") == 3


def test_loops_that_run_have_the_orientation_that_is_asked_for():
    """The target at run time has the option too, not the rules of the machine alone."""
    options = scanrnn.Options(features_first=True, implementation="planned")
    scan = functools.partial(scanrnn.scan, plan=options)
    jaxpr = training_jaxpr(scan, build("lstm"))
    found = [eqn for loop in loops(jaxpr) for eqn in gemms(loop.params["jaxpr"].jaxpr)]
    assert len(found) == 2
    for eqn in found:
        assert eqn.params["dimension_numbers"][0] == ((1,), (0,))
        assert eqn.outvars[0].aval.shape[-1] == 3


def test_batch_comes_first_if_that_is_asked_for():
    cpu = _cpu("GenuineIntel", "avx2", "avx512f")
    plan = plan_of(32, 1024, machine=cpu, features_first=False)
    assert not any(body.transposed for body in plan.bodies.values())
    assert "the batch first, as asked for" in plan.describe(long=True)
    small = plan_of(8, 16, machine=cpu, features_first=False)
    assert "as asked for" not in small.describe(long=True)


@pytest.mark.parametrize("asked", [True, False])
def test_kernels_and_parallel_scans_keep_the_order_of_axes(asked):
    rules = [e.rules(MACHINES["h100"]) for e in (pallas_gpu, pallas_tpu, associative)]
    assert all(r.with_features_first(asked) == r for r in rules)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_features_first_turns_the_products_of_both_loops(always, name):
    """The matrix is on the left, and the batch is the last axis of the result."""
    jaxpr = training_jaxpr(scanrnn.scan, build(name))
    bodies = [loop.params["jaxpr"].jaxpr for loop in loops(jaxpr)]
    found = [eqn for body in bodies for eqn in gemms(body)]
    assert len(found) == 2
    for eqn in found:
        assert eqn.params["dimension_numbers"][0] == ((1,), (0,))
        assert eqn.outvars[0].aval.shape[-1] == 3


@pytest.mark.parametrize("name", NAMES)
def test_loop_with_features_first_transposes_nothing(whole, name):
    """Both loops of every cell lie features first, and no step has a transpose."""
    jaxpr = training_jaxpr(scanrnn.scan, build(name))
    bodies = [loop.params["jaxpr"].jaxpr for loop in loops(jaxpr)]
    with_products = [body for body in bodies if gemms(body)]
    assert len(with_products) == 2
    for body in with_products:
        assert "transpose" not in [eqn.primitive.name for eqn in body.eqns]


@pytest.mark.parametrize("shard", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_generated_step_with_features_first_equals_lax_scan(whole, shard):
    examine(15 + 60 * shard, shard, as_a_user, check_gradients)


def with_a_matrix_in_the_carry(w, carry, x):
    h, matrix = carry
    return (jnp.tanh(x + h @ w), w), h + jnp.sum(matrix)


def with_sums_of_three_axes(w, h, x):
    tiles = jnp.sum(jnp.outer(jnp.ones(3), h).reshape(3, *h.shape) * x, axis=0)
    return jnp.tanh(tiles + h @ w), jnp.max(tiles, axis=0)


@pytest.mark.parametrize("step", [with_a_matrix_in_the_carry, with_sums_of_three_axes])
def test_values_that_have_no_batch_are_right(whole, step):
    """A weight that a step returns, and values of one axis and of three."""
    keys = jax.random.split(jax.random.key(0), 3)
    w = jax.random.normal(keys[0], (4, 4))
    h, xs = jax.random.normal(keys[1], (3, 4)), jax.random.normal(keys[2], (5, 3, 4))
    init = (h, w) if step is with_a_matrix_in_the_carry else h
    assert_same((step, w, init, xs), value_and_gradients)


def plan_of(batch, features, **options):
    cell = scanrnn.cells.lstm()
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features, features))
    xs = jax.ShapeDtypeStruct((30, batch, features), "float32")
    carry = jax.eval_shape(cell.initial_carry, params, xs.update(shape=xs.shape[1:]))

    def step(carry, x):
        params, inner = carry
        inner, y = cell.step(params, inner, x)
        return (params, inner), y

    return scanrnn.plan(step, (params, carry), xs, **options)


def test_features_come_first_where_that_was_measured_to_pay():
    sizes = [(32, 1024), (48, 768), (32, 512), (128, 1024), (2, 1024), (8, 256)]
    sizes.append((8, 1024))
    cpu = _cpu("GenuineIntel", "avx2", "avx512f")
    avx2 = _cpu("GenuineIntel", "avx2")
    paying = {(32, 1024), (48, 768), (8, 1024)}
    assert {size for size in sizes if any(_transposed(*size, cpu))} == paying
    # The reverse loop reads the original matrix from the left, without a transpose.
    assert all(_transposed(*size, cpu)[:2] == [1, 1] for size in paying)
    for machine, told in (
        (cpu, "all with the features first"),
        (avx2, "1 with the features first"),
        ("h100", None),
    ):
        text = plan_of(32, 1024, machine=machine).describe(long=True)
        assert told in text if told else "with the features first" not in text


def _transposed(batch, features, machine):
    plan = plan_of(batch, features, machine=machine)
    return [len(body.transposed) for body in plan.bodies.values()]


def _cpu(vendor, *units):
    return dataclasses.replace(MACHINES["cpu"], units=frozenset(units), vendor=vendor)


CPUS = {
    "avx2": (
        _cpu("GenuineIntel", "avx2"),
        (512, 4 * MB, None),  # whole loops were not measured there
    ),
    "avx512_of_intel": (
        _cpu("GenuineIntel", "avx2", "avx512f"),
        (768, 4 * MB, (8, 48)),
    ),
    "amx": (
        _cpu("GenuineIntel", "avx2", "avx512f", "amx_bf16"),
        (768, 4 * MB, (8, 48)),
    ),
    "avx512_of_amd": (
        _cpu("AuthenticAMD", "avx2", "avx512f"),
        (768, 16 * MB, (8, 32)),
    ),
    "unknown": (_cpu(""), (512, 4 * MB, None)),
}


@pytest.mark.parametrize("name", CPUS)
def test_features_lie_first_where_it_pays_on_a_cpu(name):
    cpu, wanted = CPUS[name]
    first = planned.rules(cpu).features_first
    assert (first.side, first.least, first.loop) == wanted


def test_half_precision_is_left_as_it_is(always):
    step, params, init, xs = build("lstm")
    halves = functools.partial(jax.tree.map, lambda a: a.astype(jnp.bfloat16))
    f = functools.partial(step, halves(params))
    plan = scanrnn.plan(f, halves(init), halves(xs))
    assert not any(body.transposed for body in plan.bodies.values())
