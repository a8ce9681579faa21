"""Arguments and results of `lax.scan` that `scan` once did not support."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from tests import step_table
from tests.jaxprs import equations
from tests.step_table import B, D, H, T


@pytest.fixture(scope="module")
def arrays():
    return step_table.arrays(
        jax.random.key(3), U=(H, H), W=(D, H), h=(B, H), xs=(T, B, D)
    )


def elman(arrays, pair=lambda h, y: (h, y)):
    def step(h, x):
        h = jnp.tanh(x @ arrays["W"] + h @ arrays["U"])
        return pair(h, (h,))

    return step, arrays["h"], arrays["xs"]


@pytest.mark.parametrize("options", [{}, {"implementation": "scan"}], ids=str)
def test_keyword_of_lax_scan_for_its_transpose_is_taken(arrays, options):
    step, init, xs = elman(arrays)

    def gradient(scan, **options):
        return jax.grad(lambda h: scan(step, h, xs, **options)[0].sum())(init)

    ours = functools.partial(scanrnn.scan, **options)
    wanted = gradient(lax.scan, _split_transpose=True)
    np.testing.assert_allclose(gradient(ours, _split_transpose=True), wanted)


Pair = collections.namedtuple("Pair", "carry y")


def test_pair_of_the_step_is_the_pair_of_the_scan(arrays):
    args = elman(arrays, lambda h, y: [h, y])
    got, wanted = scanrnn.scan(*args), lax.scan(*args)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    assert isinstance(scanrnn.scan(*elman(arrays, Pair)), Pair)


def trips(arrays, **options):
    """The steps per trip of the loop of a scan; 0 for all steps."""
    step, init, xs = elman(arrays)
    jaxpr = jax.make_jaxpr(lambda: scanrnn.scan(step, init, xs, **options))().jaxpr
    loops = (e for e in equations(jaxpr) if e.primitive.name == "scan")
    return next(loops).params["unroll"]


def test_unrolling_by_a_bool_is_not_that_by_a_number(arrays):
    """As `True == 1`, `unroll=True` once got the plan of `unroll=1`, with a loop."""
    wanted = [(1, 1), (True, 0), (False, 1), (0, 0), (np.bool_(True), 0), (2, 2)]
    assert [(u, trips(arrays, unroll=u)) for u, _ in wanted] == wanted


def test_plan_that_unrolls_all_is_not_for_one_step_per_trip(arrays):
    plan = scanrnn.plan(*elman(arrays), unroll=True)
    assert trips(arrays, unroll=True, plan=plan) == 0
    with pytest.raises(ValueError, match="plan was made for other arguments"):
        trips(arrays, unroll=1, plan=plan)


@pytest.mark.parametrize(
    "length", [5, 5.0, np.int8(5), jnp.int32(5), np.array(5)], ids=str
)
def test_length_is_any_whole_number_as_in_lax_scan(arrays, length):
    step, init, _ = elman(arrays)
    plan = scanrnn.plan(lambda h, _: step(h, arrays["xs"][0]), init, length=length)
    assert type(plan.length) is int and plan.length == 5


@pytest.mark.parametrize("implementation", ["scan", "planned"])
@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 2}], ids=str)
def test_direction_and_unrolling_may_be_arrays(arrays, implementation, options):
    """`lax.scan` cannot hash these, so whether they were taken hung on the plan."""
    run = functools.partial(scanrnn.scan, implementation=implementation)
    given = {name: jnp.asarray(value) for name, value in options.items()}
    ours, wanted = run(*elman(arrays), **given), run(*elman(arrays), **options)
    jax.tree.map(np.testing.assert_array_equal, ours, wanted)


BAD = {
    "half": ("unroll", 2.5, TypeError, "2.5 of type float"),
    "text": ("unroll", "all", TypeError, "'all' of type str"),
    "none": ("unroll", None, TypeError, "None of type NoneType"),
    "below zero": ("unroll", -1, ValueError, "at least 0; got -1"),
    "half a step": ("length", 2.5, ValueError, "a whole number of steps; got 2.5"),
    "no end": ("length", float("inf"), ValueError, "a whole number of steps; got inf"),
    "less than none": ("length", -1, ValueError, "a whole number of steps; got -1"),
    "digits": ("length", "3", TypeError, "a number of steps; got '3' of type str"),
    "several": ("length", [3], TypeError, r"got \[3\] of type list"),
}


@pytest.mark.parametrize("front", [scanrnn.scan, scanrnn.plan])
@pytest.mark.parametrize("name, value, error, message", BAD.values(), ids=BAD)
def test_bad_number_is_named(arrays, front, name, value, error, message):
    with pytest.raises(error, match=f"scan: {name} must be .*{message}"):
        front(*elman(arrays), **{name: value})


def test_traced_length_is_refused_with_the_way_out(arrays):
    step, init, _ = elman(arrays)

    def run(length):
        return scanrnn.scan(lambda h, _: step(h, arrays["xs"][0]), init, length=length)

    with pytest.raises(TypeError, match="length must be known .* static_argnames"):
        jax.jit(run)(3)
