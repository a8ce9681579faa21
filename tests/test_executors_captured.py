"""Kernels for a GPU of steps that capture masks, or read a flag at each step."""

import functools

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn.cells import LSTMCarry
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu import triton
from scanrnn.executors.gpu.block_kernel import BatchView
from scanrnn.executors.gpu.lane_kernel import LaneView
from scanrnn.executors.gpu.slice_kernel import SliceView
from scanrnn.executors.gpu.state_kernel import StateView
from scanrnn.planner.emit import emit
from tests.test_executors_lanes import assert_equal_to_lax_scan, drawn
from tests.test_executors_lowered import run_products_by

NAME = pallas_gpu.NAME
T, H, HEADS = 4, 32, 2
LSTM = scanrnn.cells.lstm()


def lstm(w):
    """An LSTM with variational dropout of its inputs and its state (Gal, 2016)."""

    def step(carry, x):
        carry = carry._replace(h=w["of_h"] * carry.h)
        carry, y = LSTM.step(w["lstm"], carry, w["of_x"] * x)
        kept = w["of_h"] > 0
        return carry._replace(h=jnp.where(kept, carry.h, carry.h / 2)), y

    return step


def heads(w):
    """Block-diagonal products; each example has a scale for each head."""

    def step(h, x):
        h = jnp.tanh(jnp.einsum("bhk,hkn->bhn", w["of_h"] * h, w["U"]) + x)
        return h, h

    return step


def lanes(w):
    """A leaky sum that forgets as fast as each example says."""

    def step(h, x):
        h = jax.nn.sigmoid(w["of_h"]) * h + w["of_x"] * x
        return h, h

    return step


def state(w):
    """A matrix memory, in which each example has a decay of its own."""

    def step(S, x):
        S = w["of_h"] * S + x[..., :, None] * x[..., None, :]
        return S, jnp.einsum("bkv,bk->bv", S, x)

    return step


def of_rows(B):
    """A step, its params, carry and xs, for each view."""
    of_h, of_x, h, c, xs = drawn((B, H), (B, H), (B, H), (B, H), (T, B, H))
    masks = {"of_h": jnp.where(of_h > 0, 1.5, 0.0), "of_x": of_x}
    params = LSTM.init(jax.random.key(1), H, H)
    params = {"lstm": jax.tree.map(lambda a: a.astype(float), params), **masks}
    K = H // HEADS
    of_head, U, by_head, x = drawn(
        (B, HEADS, K), (HEADS, K, K), (B, HEADS, K), (T, B, HEADS, K)
    )
    decay, S, keys = drawn((B, K, K), (B, K, K), (T, B, K))
    return {
        "blocks": (lstm, (params, LSTMCarry(h, c), xs)),
        "slices": (lstm, (params, LSTMCarry(h, c), xs)),
        "heads": (heads, ({"of_h": of_head, "U": U}, by_head, x)),
        "lanes": (lanes, (masks, h, xs)),
        "state": (state, ({"of_h": decay}, S, keys)),
    }


VIEWS = {
    "blocks": BatchView,
    "slices": SliceView,
    "heads": BatchView,
    "lanes": LaneView,
    "state": StateView,
}


@pytest.fixture
def kind(request, monkeypatch):
    """The view that runs a step with products by matrices, and the name of the row."""
    slices = VIEWS[request.param] is SliceView
    run_products_by(SliceView if slices else BatchView, monkeypatch)
    return request.param


def prepared(make, args):
    params, carry, xs = args
    plan = scanrnn.plan(make(params), carry, xs, implementation=NAME)
    bodies = emit(plan).values()
    return plan, [triton.prepared(body) for body in bodies]


@pytest.mark.parametrize("kind", VIEWS, indirect=True)
@pytest.mark.parametrize("B", [1, 3, 17])
def test_captured_arrays_of_a_kernel_give_what_lax_scan_gives(kind, B):
    """Their gradients, too."""
    make, args = of_rows(B)[kind]
    plan, steps = prepared(make, args)
    for step in steps:
        view = pallas_gpu.view_of(step.graph, plan.machine)
        assert isinstance(view, VIEWS[kind])
    assert_equal_to_lax_scan(make, args, reverse=B == 3)


@pytest.mark.parametrize("kind", VIEWS, indirect=True)
def test_captured_arrays_are_leaves_of_the_carry(kind):
    make, args = of_rows(3)[kind]
    _, steps = prepared(make, args)
    for step in steps:
        graph, first = step.graph, len(step.graph.carry) - len(step.captured)
        assert graph.carry[first:] == graph.carry_out[first:] == step.captured
    assert any(step.captured for step in steps)


@pytest.mark.parametrize("kind", VIEWS, indirect=True)
def test_flag_of_each_step_is_for_the_whole_batch(kind):
    make, (params, carry, xs) = of_rows(3)[kind]

    def flagged(w):
        def step(carry, inputs):
            x, kept = inputs
            new, y = make(w)(carry, x)
            pairs = functools.partial(jnp.where, kept > 0)
            return jax.tree.map(pairs, new, carry), y

        return step

    args = params, carry, (xs, jnp.arange(T) % 2.0)
    plan, steps = prepared(flagged, args)
    for step in steps:
        view = pallas_gpu.view_of(step.graph, plan.machine)
        assert isinstance(view, VIEWS[kind])
    assert_equal_to_lax_scan(flagged, args)


@pytest.mark.parametrize("B", [16, 32])
def test_weights_as_long_as_the_batch_stay_weights(B):
    """A bias of as many features as examples, and a matrix with as many rows."""
    U, b, h, xs = drawn((B, B), (B,), (B, B), (T, B, B))

    def make(w):
        def step(h, x):
            h = jnp.tanh(h @ w["U"] + x) * w["b"]
            return h, h

        return step

    args = {"U": U / B, "b": b}, h, xs
    _, steps = prepared(make, args)
    assert not any(step.captured for step in steps)
    assert_equal_to_lax_scan(make, args)


def test_planner_chooses_a_kernel_for_variational_dropout_on_an_h100():
    B, H = 16, 128
    w = LSTM.init(jax.random.key(0), H, H)
    mask = jax.ShapeDtypeStruct((B, H), "float32")
    xs = jax.ShapeDtypeStruct((64, B, H), "float32")

    def run(w, mask, h, xs):
        step = lstm({"lstm": w, "of_h": mask, "of_x": mask})
        plans.append(scanrnn.plan(step, LSTMCarry(h, h), xs, machine="h100"))
        return h

    plans: list = []
    jax.eval_shape(run, w, mask, mask, xs)
    (plan,) = plans
    assert plan.executor.name == NAME


def masked(w):
    """An example stops where its flag says so; each has a rate of its own."""

    def step(h, x):
        new = jnp.tanh(h @ w["U"] + w["rate"][:, None] * x)
        return jnp.where(w["of_h"][:, None] > 0, new, h), new

    return step


@pytest.mark.parametrize("B", [3, 32])
def test_captured_number_of_each_example_is_spread_over_its_features(B):
    U, flags, rate, h, xs = drawn((H, H), (B,), (B,), (B, H), (T, B, H))
    args = {"U": U / H, "of_h": flags, "rate": rate}, h, xs
    assert_equal_to_lax_scan(masked, args)


@pytest.mark.parametrize("B", [4, 6])
def test_array_of_heads_may_be_as_long_as_the_batch(B):
    """Four heads, each a step that is mapped over the weights of a head."""
    N, K = 4, 16
    U, b, h, xs = drawn((N, K, K), (N, K), (B, N, K), (T, B, N, K))

    def make(w):
        def of_head(U, b, h, x):
            return jnp.tanh(h @ U + x) * b

        def step(h, x):
            h = jax.vmap(of_head, (0, 0, 1, 1), 1)(w["U"], w["b"], h, x)
            return h, h

        return step

    assert_equal_to_lax_scan(make, ({"U": U, "b": b}, h, xs))


def wide_counts(W):
    """A sum of booleans is an int64 if JAX computes in 64 bits, whatever h is."""

    def step(h, x):
        h = jnp.tanh(h @ W + x)
        return h, (jnp.sum(h > 0, -1, keepdims=True), x.astype("float64"))

    return step


def test_numbers_of_64_bits_in_a_step_of_32_bits_stay_as_wide():
    W, h, xs = drawn((H, H), (3, H), (T, 3, H), dtype="float32")
    assert_equal_to_lax_scan(wide_counts, (W / H, h, xs), rtol=1e-5)


def hashed(a):
    def step(h, x):
        big = x.astype("int64") * 6364136223846793005 + 1442695040888963407
        h = jnp.where(big >= 0, a * h, h + 1)
        return h, h

    return step


def test_products_of_64_bits_inside_a_step_are_not_cut():
    xs = jax.random.randint(jax.random.key(0), (9, 3, 16), 0, 1000, "int32")
    h = jnp.ones((3, 16), "float32")
    found = [
        scanrnn.scan(hashed(jnp.float32(0.9)), h, xs, implementation=name)
        for name in ("scan", NAME)
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        assert jnp.allclose(ours, theirs)


def test_rows_that_triton_cannot_count_are_refused():
    def step(h, x):
        h = jnp.tanh(0.9 * h + x)
        return h, h > 0

    struct = jax.ShapeDtypeStruct
    h, xs = struct((64, 512), "float32"), struct((70_000, 64, 512), "float32")
    with pytest.raises(ValueError, match="cannot count 2,293,760,000 elements"):
        scanrnn.plan(step, h, xs, implementation=NAME)
