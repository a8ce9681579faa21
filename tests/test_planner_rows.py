"""Rows that a loop reads: those of the fewest bytes, by trying every choice."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import TIME, Graph, variables
from scanrnn.planner.motion.around import around


def norm(a):
    return a - jnp.sum(a, -1, keepdims=True)


# Steps from a gain, a carry and two rows; and what runs before the loop.
STEPS = {
    "one row in place of two": (
        lambda w, h, a, b: jnp.tanh(w * a + b) * h,
        {"mul", "add", "tanh"},
    ),
    "two rows in place of one": (
        lambda w, h, a, b: jnp.tanh(a) * h + jnp.sin(a) * jnp.cos(h) + b,
        set(),
    ),
    "two rows in place of two": (
        lambda w, h, a, b: (w * a * b + a) * h + w * a * jnp.cos(h),
        {"mul", "add"},
    ),
    "parts that are wanted apart": (
        lambda w, h, a, b: h * jnp.concatenate(
            [jnp.tanh(part) for part in jnp.split(w * a, 2, axis=-1)], -1
        ) + b,
        {"mul", "split", "tanh", "concatenate"},
    ),
    "a norm": (
        lambda w, h, a, b: jnp.tanh(w * norm(a) + b) * h,
        {"reduce_sum", "broadcast_in_dim", "sub", "mul", "add", "tanh"},
    ),
}  # fmt: skip


def graph_of(step):
    shapes = (1, 4), (2, 4), (2, 4), (2, 4)
    args = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return Graph.of(jax.make_jaxpr(step)(*args).jaxpr, 1, 1)


def bytes_read(graph, out):
    """Bytes of rows, if some equations are out of the loop."""
    made = {v for e in out for v in e.outvars}
    inside = [e for e in graph.eqns if e not in out]
    read = {v for e in inside for v in variables(e.invars)}
    read |= {*variables(graph.outs)}
    return sum(map(ops.bytes_of, read & {*graph.xs, *made}))


def choices(graph):
    """All ways to take equations of time inputs out of the loop."""
    bits = graph.depends
    early = [e for e in graph.eqns if bits[e] == TIME]
    for count in range(len(early) + 1):
        for out in itertools.combinations(early, count):
            known = {*graph.xs, *graph.weights, *(v for e in out for v in e.outvars)}
            if all(known.issuperset(variables(e.invars)) for e in out):
                yield out


@pytest.mark.parametrize("name", STEPS)
def test_rows_of_a_loop_have_the_fewest_bytes(name):
    step, wanted = STEPS[name]
    graph = graph_of(step)
    before, left, after = around(graph, pays=False, sums=True)
    assert {e.primitive.name for e in before.eqns} == wanted
    least = min(bytes_read(graph, out) for out in choices(graph))
    assert sum(map(ops.bytes_of, left.xs)) == least
    assert not after.eqns
    # Other executors leave all of it in the loop.
    kept, whole, _ = around(graph, pays=False)
    assert not kept.eqns and whole.eqns == graph.eqns
