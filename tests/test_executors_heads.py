"""Loops with block-diagonal products as kernels for a GPU: a program runs one head."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu import triton
from scanrnn.planner.emit import emit
from tests.test_executors_blocks import assert_as_exact_as_lax_scan, drawn
from tests.test_executors_lanes import assert_equal_to_lax_scan

NAME = pallas_gpu.NAME
RUN = {
    "elman": (scanrnn.cells.elman(heads=6), 96),
    "lstm": (scanrnn.cells.lstm(heads=2), 64),
    "lstm-peephole": (scanrnn.cells.lstm(heads=3, peephole=True), 48),
    "lstm-mi": (scanrnn.cells.lstm(heads=2, integration="multiplicative"), 32),
    "gru": (scanrnn.cells.gru(heads=3), 48),
    "gru-cho2014": (scanrnn.cells.gru(heads=2, dialect="cho2014"), 32),
    "ugrnn": (scanrnn.cells.ugrnn(heads=2), 32),
    "slstm": (scanrnn.cells.slstm(heads=2), 32),
}
QUICK = ("lstm", "gru")


SIZES = [
    *((1, 1, "float64"), (5, 3, "float64"), (3, 17, "float64"), (4, 2, "float64")),
    (5, 3, "float32"),
]


def sizes_of(name):
    """An LSTM has all sizes: they are of the kernel. The others take turns in them."""
    first = 2 * [*RUN].index(name)
    return (
        SIZES if name == "lstm" else [SIZES[(first + i) % len(SIZES)] for i in (0, 1)]
    )


@pytest.mark.parametrize(
    ("name", "T", "B", "dtype"),
    [
        pytest.param(name, *sizes, marks=() if name in QUICK else pytest.mark.slow)
        for name in RUN
        for sizes in sizes_of(name)
    ],
)
def test_heads_equal_lax_scan(name, T, B, dtype):
    cell, H = RUN[name]
    make = functools.partial(functools.partial, cell.step)
    rtol = 1e-9 if dtype == "float64" else 1e-5
    args = drawn(cell, T, B, H, dtype)
    assert_equal_to_lax_scan(make, args, reverse=B == 17, rtol=rtol)


@pytest.mark.parametrize("name", QUICK)
def test_heads_in_bfloat16_are_as_exact_as_lax_scan(name):
    cell, H = RUN[name]
    assert_as_exact_as_lax_scan(cell, drawn(cell, 9, 3, H, "bfloat16"))


def views(step, carry, xs):
    plan = scanrnn.plan(step, carry, xs, implementation=NAME)
    bodies = emit(plan).values()
    graphs = [triton.prepared(body).graph for body in bodies]
    return [pallas_gpu.view_of(graph, plan.machine) for graph in graphs]


def test_heads_are_an_axis_of_the_grid():
    cell, H = RUN["gru"]
    params, carry, xs = drawn(cell, 5, 17, H)
    made = views(functools.partial(cell.step, params), carry, xs)
    assert {view.grid for view in made} == {(3, 3)}
    for view in made:
        assert {e.primitive.name for e in view.graph.eqns}.isdisjoint(
            {"transpose", "reshape"}
        )


def by_einsum(heads, gates=2):
    """A step with heads as a user writes it: a norm of each head, and gates."""

    def make(w):
        def step(h, inputs):
            x, keep = inputs
            z = jnp.einsum("bhk,hkn->bhn", h, w["U"]) + x
            z = z / jnp.sqrt(1 + jnp.mean(z**2, axis=-1, keepdims=True))
            f, u = jnp.split(z, gates, axis=-1)
            h = jax.nn.sigmoid(f + w["f"]) * h + jnp.tanh(u) * w["scale"][:, None]
            h = jnp.where(keep[:, None, None], h, 0.0)
            return h, h.reshape(len(h), -1)

        return step

    return make


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("B", [1, 3, 17])
def test_heads_of_an_einsum_equal_lax_scan(heads, B):
    keys = jax.random.split(jax.random.key(0), 5)
    draw, T, K = jax.random.normal, 4, 16
    w = {
        "U": draw(keys[0], (heads, K, 2 * K)),
        "f": draw(keys[1], (K,)),
        "scale": draw(keys[2], (heads,)),
    }
    h, x = draw(keys[3], (B, heads, K)), draw(keys[4], (T, B, heads, 2 * K))
    keep = (jnp.arange(T * B) % 3 > 0).reshape(T, B)

    def make(w):
        step = by_einsum(heads)(w)
        return lambda h, x: step(h, (x[0], x[1] > 0))

    args = w, h, (x, keep.astype(x.dtype))
    assert_equal_to_lax_scan(make, args, reverse=B == 3)


def refused(step, carry, xs):
    with pytest.raises(ValueError, match="cannot run this step") as caught:
        scanrnn.plan(step, carry, xs, implementation=NAME)
    return str(caught.value)


def test_heads_that_meet_are_refused_with_the_reason():
    def reason(cell, H):
        params, carry, xs = drawn(cell, 3, 2, H)
        return refused(functools.partial(cell.step, params), carry, xs)

    cells = scanrnn.cells
    assert "a product mixes the heads" in reason(cells.lstm(heads=2, projection=32), 32)
    assert "reduce_sum mixes the heads" in reason(cells.gru(heads=2, norm="ba2016"), 32)
    assert "at least 16 features" in reason(cells.lstm(heads=4), 32)
    assert "powers of two, got [24" in reason(cells.lstm(heads=2), 48)


def first_of_all(z, shared, V):
    del shared, V
    return jnp.concatenate([lax.split(z, (1, 1), 1)[1]] * 2, 1)


def one_for_each(z, shared, V):
    """The kernel's step had the first part in both heads, and no slope told it so."""
    del V
    both = jnp.concatenate([shared[:, None], jnp.sin(shared)[:, None]], 1)
    return z + lax.stop_gradient(both)


def other_example(z, shared, V):
    del shared, V
    return jnp.concatenate(lax.split(z, (1, 1), 0)[::-1], 0)


def of_shared(z, shared, V):
    return z + jnp.einsum("bk,khn->bhn", shared, V)


def before_batch(z, shared, V):
    del shared, V
    return z.swapaxes(0, 1)


REFUSED = {
    first_of_all: "does not keep the heads apart",
    one_for_each: "does not keep the heads apart",
    other_example: "does not keep the batch apart",
    of_shared: "a product makes all heads of what they share",
    before_batch: "does not keep the heads apart",
}


@pytest.mark.parametrize("meet", REFUSED)
def test_heads_that_are_cut_or_share_a_state_are_refused_with_the_reason(meet):
    """Two of two: each part of the heads, or of the batch, is one index."""
    U, V, h = jnp.ones((2, 16, 16)), jnp.ones((16, 2, 16)), jnp.ones((2, 2, 16))

    def step(carry, x):
        h, shared = carry
        z = meet(jnp.einsum("bhk,hkn->bhn", h, U) + x, shared, V)
        return (jnp.tanh(z), 0.9 * shared), z

    assert REFUSED[meet] in refused(step, (h, h[0]), jnp.stack([h] * 3))


def test_heads_before_the_batch_are_refused_with_the_reason():
    U, h = jnp.ones((2, 16, 16)), jnp.ones((2, 3, 16))

    def step(h, x):
        h = jnp.tanh(jnp.einsum("hbk,hkn->hbn", h, U) + x)
        return h, h

    assert "the heads before the batch" in refused(step, h, jnp.stack([h] * 3))
