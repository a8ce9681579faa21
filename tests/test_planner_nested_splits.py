"""Gates that a step splits in two turns are read as if it had split them at once."""

import functools

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from tests.compare import assert_same, value_and_gradients

T, B, H, L = 6, 2, 4, 3


def gates(params, h, x):
    """Two small gates, and what is split later."""
    z = jnp.concatenate([x, h], -1) @ params["kernel"]
    return jax.nn.softmax(z[:, :L]), jax.nn.softmax(z[:, L : 2 * L]), z[:, 2 * L :]


def two_turns(params, h, x):
    first, second, rest = gates(params, h, x)
    a, b = jnp.split(rest, 2, -1)
    h = jnp.tanh(a) * first[:, :1] + b * second[:, :1]
    return h, h


def three_turns(params, h, x):
    first, second, rest = gates(params, h, x)
    a, b = jnp.split(rest, 2, -1)
    c, d = jnp.split(b, 2, -1)
    h = jnp.tanh(a) + jnp.concatenate([c, d * first[:, :1]], -1) * second[:, :1]
    return h, h


def read_whole(params, h, x):
    """What is split again is also read as it is, so it stays one piece."""
    first, second, rest = gates(params, h, x)
    a, b = jnp.split(rest, 2, -1)
    h = jnp.tanh(a) * b + rest.max(-1, keepdims=True) * first[:, :1] * second[:, 1:2]
    return h, h


CASES = {two_turns: 4, three_turns: 5, read_whole: 3}


def problem():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (2 * H, 2 * L + 2 * H), (B, H), (T, B, H)
    draw = functools.partial(jax.random.normal, dtype=jnp.float64)
    kernel, h, xs = (draw(k, s) for k, s in zip(keys, shapes, strict=True))
    return {"kernel": kernel}, h, xs


@pytest.mark.parametrize("step", CASES)
def test_splits_of_pieces_become_one_split(step):
    params, h, xs = problem()
    options = {"machine": "cpu", "implementation": "planned"}
    plan = scanrnn.plan(functools.partial(step, params), h, xs, **options)
    splits = [e for e in plan.step.eqns if e.primitive.name == "split"]
    assert max(len(e.outvars) for e in splits) == CASES[step]
    assert "one slice of the sequence for each gate" in plan.describe(long=True)


@pytest.mark.parametrize("step", CASES)
def test_step_with_nested_splits_equals_lax_scan(step):
    params, h, xs = problem()
    make = step, params, h, xs
    options = scanrnn.Options(implementation="planned")
    assert_same(make, value_and_gradients, plan=options)
