"""Scans with an associative operation: every form gives the values of the others."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from scanrnn.executors.parallel import scans as _scans
from scanrnn.executors.parallel.zero_product import times
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.rule_groups import ScanRules

B, D = 2, 3
ANY = 2**40
FORMS = {
    "joined": ScanRules(),
    "padded": ScanRules(pads=True),
    "pairs": ScanRules(pairs=(1, ANY, ANY)),
    # More steps than there are blocks.
    "blocks": ScanRules(blocks=(128, 129, ANY)),
}
# The last blocks are not full, or empty; odd and even numbers of steps are joined.
NARROW = [("pairs", 1), ("pairs", 3), ("pairs", 77)]
MORE = [("pairs", 2), ("pairs", 64), *(("blocks", T) for T in (129, 256, 300, 1000))]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_scan_of_one_factor_equals_that_of_many(length, reverse):
    draw = functools.partial(np.random.default_rng(length).uniform, -0.5, 0.5)
    steps, n = Rows(length, reverse), 2
    A = [jnp.asarray(draw(size=(1, 1, D))) for _ in range(n * n)]
    b = [jnp.asarray(draw(size=(length, B, D))) for _ in range(n)]
    start = [jnp.asarray(draw(size=(B, D))) for _ in range(n)]
    for m in (1, n):
        args = b[:m], start[:m], steps
        many = [jnp.broadcast_to(a, (length, 1, D)) for a in A[: m * m]]
        one_, wanted = _scans.affine(A[: m * m], *args), _scans.affine(many, *args)
        for a, w in zip(one_, wanted, strict=True):
            np.testing.assert_allclose(a, w, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 4, 5, 63, 64])
def test_scan_whose_values_are_padded_is_the_scan_whose_values_are_joined(
    length, reverse
):
    """A GPU adds padded arrays up. Infinities and NaN stay in their steps."""
    draw = functools.partial(np.random.default_rng(length).uniform, -0.5, 0.5)
    A, b, d = (jnp.asarray(draw(size=(length, B, D))) for _ in range(3))
    b = b.at[length // 2, 0].set(jnp.inf).at[length // 2, 1].set(jnp.nan)
    A, start = A.at[length // 2].set(0.0), jnp.asarray(draw(size=(B, D)))
    gone, rows = A == 0, Rows(length, reverse)

    def scans(rules):
        largest = _scans.joined(jnp.maximum, A, b, gone, start, rows, rules)
        summed = _scans.entered([A], [b], [d], [start], rows, rules)
        return *_scans.affine([A], [b], [start], rows, rules), largest, summed

    found, wanted = scans(FORMS["padded"]), scans(FORMS["joined"])
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize(
    ("form", "length", "reverse"),
    [
        *((*one, reverse) for one in NARROW for reverse in (False, True)),
        *(
            pytest.param(*one, bool(i % 2), marks=pytest.mark.slow)
            for i, one in enumerate(MORE)
        ),
    ],
)
def test_scan_of_narrow_steps_is_that_of_others(form, length, reverse):
    """On a TPU. Infinities and NaN stay where they are, and end at a factor of zero."""
    draw = functools.partial(np.random.default_rng(length).uniform, -0.5, 0.5)
    A, b, d, other = (jnp.asarray(draw(size=(length, B, D))) for _ in range(4))
    half = length // 2
    b = b.at[half, 0].set(jnp.inf).at[half, 1].set(jnp.nan)
    A = A.at[half].set(0.0).at[min(half + 1, length - 1)].set(0.0)
    start, rows = jnp.asarray(draw(size=(B, D))), Rows(length, reverse)

    @functools.partial(jax.jit, static_argnums=0)
    def scans(rules, A, b, d, other, start):
        constant = jnp.full((1, 1, D), 0.9)
        gone = A == 0
        largest = _scans.joined(jnp.maximum, A, b, gone, start, rows, rules)
        summed = _scans.entered([constant], [b], [d], [start], rows, rules)
        pairs = [A, constant, 0.5 * A, A], [d, other], [start, 2 * start]
        many = [0.2 * A] * 9, [d, other, d], [start] * 3
        alone = [A], [b], [start]
        return (
            largest,
            summed,
            *(_scans.affine(*of, rows, rules) for of in (alone, pairs, many)),
        )

    args = A, b, d, other, start
    found, wanted = scans(FORMS[form], *args), scans(FORMS["joined"], *args)
    chex.assert_trees_all_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("form", "length"),
    [
        *itertools.product(["joined", "padded", "pairs"], [1, 9]),
        pytest.param("blocks", 131, marks=pytest.mark.slow),
    ],
)
def test_scan_with_factors_of_zero_has_the_derivatives_of_lax_scan(form, length):
    """JAX differentiates it: in chunks of a GPU, and twice in a solver."""
    draw = np.random.default_rng(0).normal
    A = jnp.asarray(draw(size=(length, D))).at[length // 2].set(0.0)
    args = A, jnp.asarray(draw(size=(length, D))), jnp.asarray(draw(size=D))

    def ours(A, b, start):
        (h,) = _scans.affine([A], [b], [start], Rows(length), FORMS[form])
        return jnp.sin(h).sum()

    def wanted(A, b, start):
        def step(h, x):
            h = x[0] * h + x[1]
            return h, jnp.sin(h)

        return lax.scan(step, start, (A, b))[1].sum()

    tangents = tuple(jnp.asarray(draw(size=a.shape)) for a in args)

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(f, *args):
        """The gradient, and its derivative along the tangents."""
        return jax.jvp(jax.grad(f, (0, 1, 2)), args, tangents)

    for found, right in zip(
        derivatives(ours, *args), derivatives(wanted, *args), strict=True
    ):
        chex.assert_trees_all_close(found, right, rtol=1e-10, atol=1e-10)


def test_scan_of_one_factor_is_within_the_bound_of_its_errors():
    """The error is within `4 u (t + 2 log2 T) S_t`; S is the sum of magnitudes."""
    length = 1000
    b = jnp.asarray(np.random.default_rng(0).normal(size=(length, 1)), jnp.float32)
    t = np.arange(1, length + 1)[:, None]
    unit = jnp.finfo(jnp.float32).eps / 2
    for factor in (0.999, -0.97, 1.004, 1e-3):
        A, start = jnp.full((1, 1), factor, jnp.float32), jnp.zeros(1, jnp.float32)
        (h,) = _scans.affine([A], [b], [start], Rows(length))
        exact, sizes = (
            lax.scan(lambda h, x, a=a: (a * h + x,) * 2, jnp.zeros(1), rows)[1]
            for a, rows in (
                (np.float64(A[0]), np.float64(b)),
                (np.abs(np.float64(A[0])), np.abs(np.float64(b))),
            )
        )
        bound = 4 * unit * (t + 2 * np.log2(length)) * sizes
        assert jnp.all(jnp.abs(h - exact) <= bound)


FACTORS = jnp.array([0.0, jnp.inf, -jnp.inf, 2.0, 0.0, -3.0])
VALUES = jnp.array([jnp.inf, 0.0, 0.0, 5.0, jnp.nan, 0.0])


@pytest.mark.parametrize("run", [lambda f: f, jax.jit, jax.vmap])
def test_product_is_zero_where_an_operand_is(run):
    found = run(times)(FACTORS, VALUES)
    np.testing.assert_array_equal(found, [0, 0, 0, 10, 0, 0])


@pytest.mark.slow
def test_product_of_two_shapes_is_differentiated_as_any_other():
    """The value has fewer axes, and an axis of size 1; a mapped axis comes first."""
    draw = np.random.default_rng(0).normal
    factor, value = (
        jnp.asarray(draw(size=(2, 4, 3, 5))),
        jnp.asarray(draw(size=(2, 1, 5))),
    )

    def score(product, factor, value):
        return jnp.sum(jnp.sin(product(factor, value)))

    for derivative in (jax.grad, jax.hessian):
        found, wanted = (
            jax.vmap(derivative(functools.partial(score, product), (0, 1)))(
                factor, value
            )
            for product in (times, jnp.multiply)
        )
        chex.assert_trees_all_close(found, wanted, rtol=1e-12)


def test_product_is_transposed_in_its_value():
    factor = jnp.array([[1.0, 0.0], [2.0, 3.0]])
    pull = jax.linear_transpose(functools.partial(times, factor), jnp.ones((1, 2)))
    (found,) = pull(jnp.array([[1.0, jnp.inf], [10.0, 1.0]]))
    np.testing.assert_array_equal(found, [[21.0, 3.0]])


def test_factor_that_is_nan_makes_a_value_of_zero_nan():
    A = jnp.ones((5, 1)).at[2].set(jnp.nan)
    for form in FORMS.values():
        zeros = jnp.zeros((5, 1))
        (h,) = _scans.affine([A], [zeros], [zeros[0]], Rows(5), form)
        np.testing.assert_array_equal(jnp.isnan(h[:, 0]), [0, 0, 1, 1, 1])
