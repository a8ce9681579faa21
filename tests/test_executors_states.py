"""Loops whose state is a matrix as kernels for a GPU: each program runs one state."""

import functools
import math
import types

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu.state_kernel import StateView
from scanrnn.planner.ir import ops
from tests.test_executors_blocks import assert_as_exact_as_lax_scan, drawn
from tests.test_executors_heads import views
from tests.test_executors_lanes import assert_equal_to_lax_scan

NAME = pallas_gpu.NAME
SHAPES = [(1, (1,)), (5, (3,)), (2, (1, 3)), (3, (3, 1)), (2, (3, 3))]
CELLS = ("deltanet", "gated_deltanet", "mlstm")


def chunk(params, state, inputs):
    """A chunk of a gated delta rule, for any axes that count the states."""
    q, k, v, w, g = inputs
    lower = jnp.tril(jnp.ones((q.shape[-2],) * 2, bool))
    decay = jnp.exp(jnp.where(lower, g[..., :, None] - g[..., None, :], -jnp.inf))
    new = v - w @ state
    attention = q @ k.swapaxes(-1, -2) * decay
    read = (q * jnp.exp(g)[..., None]) @ state
    y = params["scale"] * read + attention @ new
    last = g[..., -1, None]
    k = k * jnp.exp(last - g)[..., None]
    return state * jnp.exp(last)[..., None] + k.swapaxes(-1, -2) @ new, y


def chunks(T, lead, C, K, V, dtype):
    keys = iter(jax.random.split(jax.random.key(0), 6))

    def draw(*shape):
        return 0.3 * jax.random.normal(next(keys), shape, dtype)

    q, k, w = (draw(T, *lead, C, K) for _ in range(3))
    g = -jnp.cumsum(abs(draw(T, *lead, C)), axis=-1)
    xs = q, k, draw(T, *lead, C, V), w, g
    return {"scale": jnp.ones(V, dtype)}, draw(*lead, K, V), xs


@pytest.mark.parametrize(("T", "lead"), SHAPES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_chunks_equal_lax_scan(T, lead, dtype):
    make = functools.partial(functools.partial, chunk)
    args = chunks(T, lead, 16, 32, 16, dtype)
    rtol = 1e-9 if dtype == "float64" else 1e-5
    assert_equal_to_lax_scan(make, args, reverse=T == 5, rtol=rtol)


@pytest.mark.parametrize(("T", "lead"), [(1, (1,)), (5, (2,)), (2, (1, 3))])
def test_parts_of_states_equal_lax_scan(T, lead):
    """A program runs a part of a state: here a half of its columns."""
    make = functools.partial(functools.partial, chunk)
    args = chunks(T, lead, 64, 128, 128, "float64")
    params, carry, xs = args
    made = views(functools.partial(chunk, params), carry, xs)
    assert {view.grid for view in made} == {(2 * math.prod(lead),)}
    assert_equal_to_lax_scan(make, args, reverse=T == 5)


def test_parts_of_turned_states_equal_lax_scan():
    """The columns that need nothing of one another may be the rows of an array."""

    def make(params):
        def step(state, inputs):
            state, y = chunk(params, state.swapaxes(-1, -2), inputs)
            return state.swapaxes(-1, -2), y

        return step

    params, carry, xs = chunks(2, (3,), 64, 128, 128, "float64")
    carry = carry.swapaxes(-1, -2)
    assert {view.grid for view in views(make(params), carry, xs)} == {(6,)}
    assert_equal_to_lax_scan(make, (params, carry, xs))


def test_small_products_equal_lax_scan():
    """Triton multiplies no matrices with fewer than 16 rows."""
    make = functools.partial(functools.partial, chunk)
    assert_equal_to_lax_scan(make, chunks(3, (2,), 4, 16, 8, "float64"))


def test_chunks_in_bfloat16_are_as_exact_as_lax_scan():
    cell = types.SimpleNamespace(step=chunk)
    assert_as_exact_as_lax_scan(cell, chunks(4, (3,), 16, 16, 16, "bfloat16"))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "deltanet" else pytest.mark.slow)
        for name in CELLS
    ],
)
def test_memories_equal_lax_scan(name, heads):
    cell = getattr(scanrnn.cells, name)(heads=heads)
    make = functools.partial(functools.partial, cell.step)
    for T, B in ((1, 3), (5, 1)):
        args = drawn(cell, T, B, 16 * heads)
        assert_equal_to_lax_scan(make, args, reverse=T == 5)


@pytest.mark.parametrize("B", [1, 3])
def test_vectors_times_states_equal_lax_scan(B):
    """Linear attention by steps: one query reads the state of its head."""

    def step(state, inputs):
        q, k, v, keep = inputs
        kv = jnp.einsum("bhi,bhj->bhij", k, v)
        y = jnp.einsum("bhi,bhij->bhj", q, state + kv)
        return keep[..., None] * state + kv, y.reshape(B, -1)

    _, state, (q, k, v, _, _) = chunks(4, (B,), 3, 16, 8, "float64")
    args = (), jnp.stack([state] * 3, 1), (q, k, v, jax.nn.sigmoid(k))
    assert_equal_to_lax_scan(lambda _: step, args)


def test_states_are_the_grid():
    params, carry, xs = chunks(2, (3, 5), 16, 32, 16, "float32")
    made = views(functools.partial(chunk, params), carry, xs)
    assert {view.grid for view in made} == {(15,)}
    for view in made:
        assert isinstance(view, StateView)
        products = [e for e in view.graph.eqns if e.primitive.name == "dot_general"]
        assert len(products) >= 5
        assert all(ops.aval(e.outvars[0]).ndim <= 2 for e in view.graph.eqns)


def reason_of(step, carry, xs):
    with pytest.raises(ValueError, match="cannot run this step") as caught:
        scanrnn.plan(step, carry, xs, implementation=NAME)
    return str(caught.value)


def test_states_without_room_are_refused_with_the_reason():
    params, carry, xs = chunks(2, (1,), 128, 128, 64, "float32")
    reason = reason_of(functools.partial(chunk, params), carry, xs)
    assert "it has bool[1,128,128]" in reason and "for 8,192 numbers" in reason
    cell = scanrnn.cells.deltanet()
    params, carry, xs = drawn(cell, 2, 1, 128, "float32")
    assert views(functools.partial(cell.step, params), carry, xs)
    params, carry, xs = drawn(cell, 2, 1, 256, "float32")
    reason = reason_of(functools.partial(cell.step, params), carry, xs)
    assert "room for 16,384 numbers" in reason


def test_products_of_states_run_only_by_name_on_a_gpu():
    """They have not run on a GPU. Memories without products have, on an H100."""
    step = functools.partial(chunk, chunks(2, (8,), 16, 16, 16, "float32")[0])
    _, *args = chunks(2, (8,), 16, 16, 16, "float32")
    found = {c.name: c for c in scanrnn.plan(step, *args, machine="h100").candidates}
    assert "have not run on a GPU" in found[NAME].refusal
    asked = scanrnn.plan(step, *args, machine="h100", implementation=NAME)
    assert asked.executor.name == NAME
    cell = scanrnn.cells.deltanet()
    params, carry, xs = drawn(cell, 2, 1, 16, "float32")
    found = scanrnn.plan(
        functools.partial(cell.step, params), carry, xs, machine="h100"
    )
    assert {c.name: c for c in found.candidates}[NAME].refusal is None


def test_states_that_meet_are_refused_with_the_reason():
    params, carry, xs = chunks(2, (3,), 16, 16, 16, "float32")

    def step(state, x, mix):
        state, y = chunk(params, state, x)
        return mix(state), y

    mixed = functools.partial(step, mix=lambda s: s - s.mean(0, keepdims=True))
    assert "reduce_sum mixes the states" in reason_of(mixed, carry, xs)
    turned = functools.partial(step, mix=lambda s: jnp.einsum("bkv,ckv->bkv", s, s))
    assert "states" in reason_of(turned, carry, xs)
    sliced = functools.partial(step, mix=lambda s: s - s[:, :8].mean(1, keepdims=True))
    assert "Triton has no slice" in reason_of(sliced, carry, xs)
    first = functools.partial(step, mix=lambda s: s - s[:1, -1:])
    assert "slice does not keep the states apart" in reason_of(first, carry, xs)


def test_states_of_other_sizes_are_refused_with_the_reason():
    params, carry, xs = chunks(2, (3,), 16, 24, 16, "float32")
    step = functools.partial(chunk, params)
    assert "powers of two, got float32[" in reason_of(step, carry, xs)
