"""Count contractions in each loop, bytes of residuals, and traces."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import planned
from tests.compare import assert_same, score, training_jaxpr, value_and_gradients
from tests.jaxprs import equations, gemms, gemms_in_loops, loops
from tests.step_table import ONE_GEMM, build


def flax_cell(key):
    """The body of a Flax `LSTMCell`: eight dots."""
    cell = nn.LSTMCell(4, param_dtype=float)
    xs = jax.random.normal(key, (5, 3, 4))
    init = cell.initialize_carry(key, xs[0].shape)
    params = cell.init(key, init, xs[0])
    return cell.apply, params, init, xs


@pytest.mark.parametrize("name", ONE_GEMM)
def test_loops_of_a_cell_hold_one_gemm_each(name):
    assert gemms_in_loops(training_jaxpr(scanrnn.scan, build(name))) == [1, 1]


def test_loops_of_a_flax_cell_hold_one_gemm_each():
    make = flax_cell(jax.random.key(0))
    assert gemms_in_loops(training_jaxpr(lax.scan, make))[0] == 8
    assert gemms_in_loops(training_jaxpr(scanrnn.scan, make)) == [1, 1]


@pytest.mark.parametrize("name", ["gru_reset_before", "krause_mlstm"])
def test_loops_of_a_cell_with_two_gemms_in_series_hold_two(name):
    assert gemms_in_loops(training_jaxpr(scanrnn.scan, build(name))) == [2, 2]


CONVOLUTIONAL = ("convolutional", "convolutional_per_gate")


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_one_convolution_is_left_in_each_loop(name):
    jaxpr = training_jaxpr(scanrnn.scan, build(name))
    assert gemms_in_loops(jaxpr) == [1, 1]
    # Outside of the loops, each gate has the convolution of the input and its two
    # gradients. All gates share the gradient of the recurrent kernel.
    gates = {"convolutional": 1, "convolutional_per_gate": 4}[name]
    assert len(list(gemms(jaxpr))) == 2 + 3 * gates + 1


@pytest.mark.parametrize("name", [*ONE_GEMM, *CONVOLUTIONAL])
def test_reverse_loop_accumulates_no_gradient_of_a_matrix(name):
    """A gradient that is summed in the loop would be an output without a time axis."""
    step, params, init, xs = build(name)
    jaxpr = training_jaxpr(scanrnn.scan, (step, params, init, xs))
    scans = loops(jaxpr)
    leaving = {v.aval.shape for loop in scans for v in loop.outvars}
    shapes = {leaf.shape for leaf in jax.tree.leaves(params) if leaf.ndim > 1}
    carried = {leaf.shape for leaf in jax.tree.leaves(init)}
    assert len(scans) == 2
    assert not leaving & (shapes - carried)


@pytest.mark.parametrize(
    "name", ["lstm", "lstm_sliced", "lstm_concatenated", "lstm_of_one_example"]
)
def test_reverse_loop_stacks_one_cotangent_for_all_gates(name):
    step, params, init, xs = build(name)
    jaxpr = training_jaxpr(scanrnn.scan, (step, params, init, xs))
    reverse = loops(jaxpr)[-1]
    (T, B, _), H = xs.shape, init[0].shape[-1]
    stacked = [v.aval.shape for v in reverse.outvars if v.aval.shape[:1] == (T,)]
    assert stacked == [(T, B, 4 * H)]


def test_without_deferral_no_loop_carries_a_cotangent_of_the_whole_sequence():
    step, params, init, xs = build("lstm")
    options = scanrnn.Options(defer=False)
    scan = functools.partial(scanrnn.scan, plan=options)
    jaxpr = training_jaxpr(scan, (step, params, init, xs))
    scans = loops(jaxpr)
    bodies = [e.params["jaxpr"].jaxpr for e in scans]
    made = [v.aval.ndim for body in bodies for v in body.outvars]
    assert made and max(made) < xs.ndim


# For `relu`, lax.scan keeps only one bit per element, so half of that is not possible.
@pytest.mark.parametrize("name", [n for n in ONE_GEMM if n != "relu_rnn"])
def test_residuals_are_at_most_half_of_lax_scan(name):
    """T is so large that residuals without a time axis do not matter."""
    step, params, init, xs = build(name)
    xs = jnp.concatenate([xs] * 40)
    plan = scanrnn.plan(functools.partial(step, params), init, xs)
    ours, theirs = plan.residual_bytes
    assert ours <= 0.51 * theirs


def test_recompute_keeps_less_and_chunked_least():
    step, params, init, xs = build("ln_lstm")
    xs = jnp.concatenate([xs] * 40)
    kept = {
        policy: scanrnn.plan(
            functools.partial(step, params), init, xs, residuals=policy
        ).residual_bytes[0]
        for policy in ("everything", "minimal", "recompute", "chunked")
    }
    assert list(kept.values()) == sorted(kept.values(), reverse=True)
    assert kept["recompute"] < kept["minimal"] / 3
    assert kept["chunked"] < kept["recompute"] / 2


def test_residual_bytes_are_those_of_the_vjp():
    step, params, init, xs = build("elman")
    plan = scanrnn.plan(functools.partial(step, params), init, xs)
    # h is an output already, so only a copy of the recurrent kernel is kept.
    assert plan.residual_bytes[0] <= 4 * 4 * 8
    assert plan.residual_bytes[1] >= xs.shape[0] * 3 * 4 * 8


def test_step_is_traced_once_per_shape():
    step, params, init, xs = build("lstm")
    traced = chex.assert_max_traces(step, n=1)

    @jax.jit
    def train(params, init, xs):
        def loss(params):
            return score(scanrnn.scan(functools.partial(traced, params), init, xs))

        return jax.value_and_grad(loss)(params)

    train(params, init, xs)
    train(params, init, 2 * xs)


def test_second_eager_call_compiles_nothing():
    step, params, init, xs = build("lstm")
    f = functools.partial(step, params)
    scanrnn.scan(f, init, xs)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(jax.stages.Lowered, "compile", lambda *a, **k: compiled.append(a))
        scanrnn.scan(f, init, 2 * xs)
    assert not compiled


def test_gemm_table_of_an_lstm_is_that_of_the_vendor():
    """Sizes and counts equal NVIDIA's table, for G = 4 gates."""
    T, B, D, H = 7, 3, 5, 4

    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ W + h @ U + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h @ V

    W, U, b = jnp.ones((D, 4 * H)), jnp.ones((H, 4 * H)), jnp.ones(4 * H)
    V = jnp.ones((H, 2))
    zeros = jnp.zeros((B, H))
    plan = scanrnn.plan(step, (zeros, zeros), jnp.ones((T, B, D)), layout=False)
    assert {tuple(row) for row in plan.gemms} == {
        ("layer-to-layer", "forward", 4 * H, B * T, D, 1, "before"),
        ("recurrent", "forward", 4 * H, B, H, T, "loop"),
        ("readout", "forward", 2, B * T, H, 1, "after"),
        ("layer-to-layer", "activation gradient", D, B * T, 4 * H, 1, "after"),
        ("recurrent", "activation gradient", H, B, 4 * H, T, "loop"),
        ("readout", "activation gradient", H, B * T, 2, 1, "before"),
        ("layer-to-layer", "weight gradient", D, 4 * H, B * T, 1, "after"),
        ("recurrent", "weight gradient", H, 4 * H, B * T, 1, "after"),
        ("readout", "weight gradient", H, 2, B * T, 1, "after"),
    }


def test_readout_of_joined_parts_is_a_product_of_each():
    """The parts, joined for all steps, would be one more array."""
    key, T, H = jax.random.key(0), 7, 4
    params = {"W": jax.random.normal(key, (2 * H, 3))}
    init, xs = (jnp.ones((3, H)), jnp.zeros((3, H))), jnp.ones((T, 3, H))

    def step(params, carry, x):
        a, b = carry
        a, b = jnp.tanh(a + x), jnp.tanh(a - b)
        return (a, b), jnp.concatenate([a, b], -1) @ params["W"]

    jaxpr = training_jaxpr(scanrnn.scan, (step, params, init, xs))
    made = [e for e in equations(jaxpr) if e.primitive.name == "concatenate"]
    assert all(e.outvars[0].aval.shape != (T, 3, 2 * H) for e in made)
    assert_same((step, params, init, xs), value_and_gradients)


def test_gradient_of_an_lstm_traces_few_jaxprs(monkeypatch):
    """Tracing takes time, so a pass that finds nothing must not trace."""
    step, params, init, xs = build("lstm_concatenated")
    xs = jnp.tile(xs, (2, 1, 1))  # a length that no other test has planned
    traced, make_jaxpr = [], jax.make_jaxpr

    def counting(f, *args, **kwargs):
        traced.append(f)
        return make_jaxpr(f, *args, **kwargs)

    def loss(params):
        return score(scanrnn.scan(functools.partial(step, params), init, xs))

    monkeypatch.setattr(jax, "make_jaxpr", counting)
    jax.jit(jax.grad(loss)).trace(params)
    assert 5 < len(traced) <= 15


def test_loop_for_values_is_not_traced_for_a_gradient(monkeypatch):
    """The only forward loop of a gradient is the one that records."""
    step, params, init, xs = build("lstm_concatenated")
    lowered, lower = [], planned.lower

    def spy(body, *args):
        lowered.append(body.rows.reverse)
        return lower(body, *args)

    def loss(params):
        return score(scanrnn.scan(functools.partial(step, params), init, xs))

    monkeypatch.setattr(planned, "lower", spy)
    jax.jit(jax.grad(loss)).trace(params)
    assert lowered.count(False) == 1 and True in lowered


def test_cost_counts_what_is_kept_for_the_reverse_loop():
    cell = scanrnn.cells.lstm()
    params = cell.init(jax.random.key(0), 32, 32)
    xs = jnp.ones([512, 4, 32])
    step = functools.partial(cell.step, params)
    args = step, cell.initial_carry(params, xs[0]), xs
    plan = scanrnn.plan(*args, machine="cpu", implementation="planned")
    ours, theirs = plan.residual_bytes
    assert plan.cost.kept == pytest.approx(ours, rel=0.05)
    scan = scanrnn.plan(*args, machine="cpu", implementation="scan").cost
    assert plan.cost.kept < scan.kept <= theirs
    assert plan.cost.memory < scan.memory


@pytest.mark.parametrize("residuals", ["minimal", "recompute", "chunked", "everything"])
def test_policy_that_is_asked_for_is_that_of_a_plan(residuals):
    """Without this rule, the estimate would prefer `lax.scan` to recomputing."""
    cell = scanrnn.cells.lstm()
    shapes = jax.eval_shape(lambda: cell.init(jax.random.key(0), 512, 512))
    xs = jax.ShapeDtypeStruct((30, 32, 512), jnp.float32)
    carry = jax.eval_shape(cell.initial_carry, shapes, xs.update(shape=(32, 512)))

    def run(params, carry, xs):
        found = scanrnn.plan(
            *(functools.partial(cell.step, params), carry, xs),
            machine="cpu",
            residuals=residuals,
        )
        assert found.executor.name == "planned"
        return carry

    jax.eval_shape(run, shapes, carry, xs)
