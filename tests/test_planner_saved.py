"""What a CPU's reverse loop reads of the forward loop, and does not compute again."""

import collections

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from tests.compare import assert_same, value_and_gradients

T = 5


def draw(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def in_reverse(step, *args):
    """How often each primitive is in the reverse loop on a CPU.

    The gradients are compared with those of `lax.scan`, too.
    """
    assert_same((lambda _, *of_step: step(*of_step), {}, *args), value_and_gradients)
    body = planned(step, *args).bodies["in reverse"]
    return collections.Counter(e.primitive.name for e in body.graph.eqns)


def planned(step, *args):
    return scanrnn.plan(step, *args, machine="cpu", implementation="planned")


def test_rule_of_a_function_reads_its_saved_output():
    """Training by CTC took over four times as long, with `logaddexp` in reverse."""

    def step(a, x):
        shifted = jnp.pad(a[:, :-1], ((0, 0), (1, 0)))
        return jnp.logaddexp(jnp.logaddexp(a, shifted), x), None

    made = in_reverse(step, draw(3, 8), draw(T, 3, 8))
    assert made["exp"] == 4
    assert not made["log1p"]


def test_matrix_is_factored_once_for_values_and_gradients():
    def step(h, x):
        matrix = jnp.eye(4) + 0.1 * h[:, :, None] * x[:, None, :]
        h = jnp.linalg.solve(matrix, x[..., None])[..., 0]
        return h, jnp.linalg.cholesky(jnp.eye(4) + h[:, :, None] * h[:, None, :])

    made = in_reverse(step, draw(3, 4), draw(T, 3, 4))
    assert not {"lu", "cholesky"} & made.keys()


@pytest.mark.parametrize("kind", [jax.random.normal, jax.random.bernoulli])
def test_noise_is_drawn_once_for_values_and_gradients(kind):
    """Training a stochastic differential equation took 1.2 times as long."""

    def step(h, key):
        return jnp.tanh(h * kind(key, shape=h.shape)), None

    made = in_reverse(step, draw(3, 4), jax.random.split(jax.random.key(0), T))
    assert not {"random_bits", "erf_inv"} & made.keys()


def test_joined_values_are_not_joined_again():
    """Training a heat equation took 1.2 times as long."""

    def step(u, x):
        around = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) - 2 * u
        return u + x * around, None

    made = in_reverse(step, draw(4, 4), draw(T))
    assert not made["concatenate"]


def test_maxima_and_sums_of_pairs_are_kept_and_the_pairs_are_not():
    """A hidden Markov model trains in 0.64 of the time of `lax.scan`, not 0.89."""
    rates = draw(8, 8)

    def step(a, x):
        return jax.nn.logsumexp(a[:, :, None] + rates, 1) + x, None

    args = step, draw(3, 8), draw(T, 3, 8)
    made = in_reverse(*args)
    assert not made["reduce_max"]
    assert made["exp"] == 1
    saved = planned(*args).loop.derivative.saved
    assert {v.aval.shape for v in saved} == {(3, 8)}


def test_values_that_are_cheap_to_compute_again_are_not_kept():
    def step(h, x):
        return jnp.tanh(jnp.sin(h) * jnp.cos(h) + x), None

    args = step, draw(3, 4), draw(T, 3, 4)
    assert in_reverse(*args)["sin"]
    assert not planned(*args).loop.derivative.saved
