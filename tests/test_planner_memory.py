"""States larger than the values read from them: no more memory than `lax.scan` needs.

The compiler counts the bytes of temporaries, for values and for gradients.
"""

import chex
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from jax import lax

import scanrnn
from tests import step_table
from tests.compare import outputs_alone, outputs_of_gradients, programs
from tests.generated_memories import materialise, memories
from tests.test_planner_generated import examine

# Bytes that do not grow with the sequence: fast memory, and arrays of one step.
ASIDE = 4_000_000
SCANS = lax.scan, scanrnn.scan
# The worst case found is 1.14: a product with every state. In reverse, all of its
# cotangents are in memory at the same time. Since JAX 0.12 `lax.scan` keeps one array
# less of each tanh (53 MB and not 77). There the worst case is 1.68: a product of
# inputs alone that is as large as a state, computed for all steps at once.
MOST = 1.15 if jax.version.__version_info__ < (0, 12) else 1.7


def check(drawn):
    program, transform, reverse = drawn
    make = materialise(program, jax.random.key(0))
    planned = scanrnn.scan
    run, floats = programs(make, transform, reverse=reverse)
    wanted, got = (run(s).lower(floats).compile() for s in (lax.scan, planned))
    theirs, ours = (c.memory_analysis().temp_size_in_bytes for c in (wanted, got))
    assert ours <= MOST * theirs + ASIDE, f"{ours / 1e6} MB, lax.scan {theirs / 1e6}"
    chex.assert_trees_all_close(got(floats), wanted(floats), rtol=1e-6, atol=1e-9)


transforms = st.sampled_from([outputs_alone, outputs_of_gradients])
strategy = st.tuples(memories(), transforms, st.booleans())


@pytest.mark.slow
def test_generated_memories_take_no_more_than_lax_scan():
    examine(20, 0, strategy, check)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(200, 204))
def test_a_hundred_generated_memories_take_no_more_than_lax_scan(shard):
    examine(20, shard, strategy, check)


def kernel_matrix(x, scan, total, ys):
    """The sums of a kernel between all points `x` and blocks of points."""

    def step(total, y):
        squares = jnp.sum(x**2, -1)[:, None] + jnp.sum(y**2, -1) - 2 * x @ y.T
        return total + jnp.exp(-squares).sum(-1), None

    return scan(step, total, ys)[0]


def test_product_larger_than_all_else_stays_in_the_loop():
    """Computed for all steps at once, it would be the largest array by far."""
    draw, run = jax.random.normal, kernel_matrix
    x = draw(jax.random.key(0), (1024, 4)) / 4
    ys = draw(jax.random.key(1), (16, 64, 4)) / 4
    args = x, jnp.zeros(1024), ys
    of = [jax.grad(lambda x, *a, s=s: jnp.sum(jnp.sin(run(x, s, *a)))) for s in SCANS]
    wanted, got = (jax.jit(f).lower(*args).compile() for f in of)
    theirs, ours = (c.memory_analysis().temp_size_in_bytes for c in (wanted, got))
    assert ours <= 1.1 * theirs
    chex.assert_trees_all_close(got(*args), wanted(*args), rtol=1e-9)


def test_convolution_larger_than_all_else_leaves_the_loop():
    """On a CPU gradients of a convolution at each step take up to ten times as long."""
    draw = jax.ShapeDtypeStruct
    cell = scanrnn.cells.conv_lstm(kernel_size=(3, 3))
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3, 32))
    xs = draw((10, 4, 32, 32, 3), "float32")

    def planned(params, x):
        carry = cell.initial_carry(params, x)
        return scanrnn.plan(lambda h, x: cell.step(params, h, x), carry, xs)

    found = []
    x = xs.update(shape=xs.shape[1:])
    jax.eval_shape(lambda *a: found.append(planned(*a)), params, x)
    assert found[0].stages.hoisted


@pytest.mark.parametrize(
    ("vocabulary", "options", "left"),
    [(2**16, {}, True), (2**16, {"chunk": 4}, False), (2**8, {}, False)],
)
def test_checkpointed_loss_is_left_to_lax_scan_if_chunks_are_large(
    vocabulary, options, left
):
    """A loss over a vocabulary, added up over microbatches: its carry is one number."""
    draw = jax.ShapeDtypeStruct

    def planned(W):
        @jax.checkpoint
        def step(total, x):
            return total - jax.nn.log_softmax(x @ W)[:, 0].sum(), None

        xs = draw((64, 32, 128), "float32")
        found.append(scanrnn.plan(step, draw((), "float32"), xs, **options))

    found = []
    jax.eval_shape(planned, draw((128, vocabulary), "float32"))
    reason = "chunks would take more memory than the step's own jax.checkpoint"
    assert (found[0].reason == reason) == left


def in_float32(z):
    """A layer norm of half precision, as Flax computes it."""
    return step_table.normalise(z.astype("float32")).astype(z.dtype)


def planned_in_half_precision(join, T=64, B=16, H=256):
    h, xs = jnp.zeros((B, H), "bfloat16"), jnp.zeros((T, B, H), "bfloat16")
    W = jnp.ones((H, H), "bfloat16")

    def step(h, x):
        h, y = join(h @ W, x @ W)
        return h.astype("bfloat16"), y

    return scanrnn.plan(step, h, xs, machine="tpu v5e")


def with_norms(u, z):
    h = jnp.tanh(in_float32(u) + in_float32(z))
    return h, h


def test_norm_that_widens_a_product_leaves_the_loop():
    stages = planned_in_half_precision(with_norms).stages
    assert [str(v.aval) for v in stages.hoisted] == ["bfloat16[16,256]"]
    before, inside = (
        sum(e.primitive.name == "reduce_sum" for e in graph.eqns)
        for graph in (stages.norms, stages.loop)
    )
    assert before == inside == 2


def test_loop_reads_a_product_before_it_is_widened():
    def step(u, z):
        h = jnp.tanh(u.astype("float32") + z.astype("float32"))
        return h, h

    stages = planned_in_half_precision(step).stages
    assert [str(v.aval) for v in stages.hoisted] == ["bfloat16[16,256]"]


def test_chunk_counts_what_norms_read():
    """The gradient of a norm reads its input, so a chunk holds input and result."""
    plan = planned_in_half_precision(with_norms, T=4096, B=64, H=512)
    arrays = {*plan.stages.norms.xs, *plan.stages.hoisted}
    assert [str(v.aval) for v in arrays] == ["bfloat16[64,512]"] * 2
    # Besides, a cotangent, and the product that is recomputed.
    assert plan.passing == 4 * 64 * 512 * 2
