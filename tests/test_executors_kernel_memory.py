"""Kernels for a TPU that stack rows over others, which nothing reads later."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

import scanrnn
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels import kernel
from tests.test_executors_kernels import numbers


def step(state, inputs):
    """A chunk of a delta rule."""
    k, v = inputs
    new = v - k @ state
    return state + k.swapaxes(-1, -2) @ new, jnp.tanh(new)


def test_kernel_stacks_over_rows_that_nothing_reads_later():
    """The interpreter for a TPU checks that no row is written before it is read."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    state, rows = jnp.zeros((2, 16, 16)), jnp.zeros((6, 2, 8, 16))
    plan = scanrnn.plan(step, state, (rows, rows), implementation=pallas_tpu.NAME)
    body = plan.bodies["in reverse"]
    graph, apart = body.graph, dataclasses.replace(body.rows, over={})
    read = {*body.rows.over.values()}.intersection(graph.xs)
    assert read and not body.rows.shifts
    given = {v: numbers(v, 6) for v in body.rows.sources(graph.xs)}
    args = (
        {v: numbers(v) for v in graph.weights},
        list(map(numbers, graph.carry)),
        given,
    )
    jaxpr = jax.make_jaxpr(lambda: kernel.run(body, *args, interpret=True))()
    (call,) = (e for e in jaxpr.eqns if e.primitive.name == "pallas_call")
    assert len(call.params["input_output_aliases"]) == len(read)
    wanted = kernel.run(dataclasses.replace(body, rows=apart), *args, interpret=True)
    for interpret in (True, pltpu.InterpretParams(detect_races=True)):
        got = kernel.run(body, *args, interpret=interpret)
        for a, b in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    races = interpret_pallas_call.races
    assert races is not None and not races.races_found
