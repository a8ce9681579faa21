"""An executor that a user writes, as `docs/how_it_works.md` explains it.

Each loop is one Pallas kernel over a grid of its steps, in Pallas's interpreter.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import scanrnn
from scanrnn.executors import EXECUTORS
from scanrnn.planner import Rules
from scanrnn.planner.ir.graph import Env
from tests.cell_table import ONE_OF_EACH, ONE_ROW_EACH, draw
from tests.tiers import one_in


class Kernel:
    """Run a loop as one kernel: the carry stays, rows are loaded and stored."""

    NAME = "kernel"

    def rules(self, machine):
        return Rules()

    def refuse(self, plan):
        return plan.unplanned

    def lower(self, body, constants, carry, arrays):
        graph, rows = body.graph, body.rows
        weights = [constants[v] for v in graph.weights]
        xs = [rows.all(arrays, v) for v in graph.xs]
        n, m, k = len(weights), len(carry), len(xs)

        def kernel(*refs):
            ins, outs = refs[: n + m + k], refs[n + m + k :]

            @pl.when(pl.program_id(0) == 0)
            def start():
                for to, first in zip(outs, ins[n : n + m], strict=False):
                    to[...] = first[...]

            values = [ref[...] for ref in (*ins[:n], *outs[:m])]
            values += [ref[0] for ref in ins[n + m :]]
            made = Env(graph.eqns, zip(graph.inputs, values, strict=True))
            made = made.read_all(graph.outs)
            for to, value in zip(outs[:m], made[:m], strict=True):
                to[...] = value
            for to, value in zip(outs[m:], made[m:], strict=True):
                to[0] = value

        def whole(a):
            return pl.BlockSpec(a.shape, lambda t: (0,) * a.ndim)

        def row(a):
            at = (lambda t: rows.length - 1 - t) if rows.reverse else (lambda t: t)
            shape = (1, *a.shape[1:])
            return pl.BlockSpec(shape, lambda t: (at(t), *(0,) * (a.ndim - 1)))

        ys = [jax.ShapeDtypeStruct((rows.length, *v.aval.shape), v.aval.dtype)
              for v in graph.ys]  # fmt: skip
        ends = [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in carry]
        outs = pl.pallas_call(
            kernel,
            grid=(rows.length,),
            in_specs=[*map(whole, [*weights, *carry]), *map(row, xs)],
            out_specs=[*map(whole, ends), *map(row, ys)],
            out_shape=[*ends, *ys],
            interpret=True,
        )(*weights, *carry, *xs)
        return outs[:m], outs[m:]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(EXECUTORS, Kernel.NAME, Kernel())


def score(row, implementation, reverse, params, xs, carry):
    step = functools.partial(row.cell.step, params)
    outs = scanrnn.scan(step, carry, xs, None, reverse, implementation=implementation)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)), outs


def assert_equal_to_lax_scan(row, reverse):
    both = []
    for implementation in ("scan", Kernel.NAME):
        f = functools.partial(score, row, implementation, reverse)
        f = jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)
        both.append(jax.jit(f)(*draw(row)))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", one_in(6, ONE_OF_EACH.values(), ONE_OF_EACH))
def test_executor_from_outside_equals_lax_scan(row):
    assert_equal_to_lax_scan(row, reverse=False)


# The direction is the executor's alone: no cell knows of it.
@pytest.mark.slow
@pytest.mark.parametrize("row", ONE_ROW_EACH[::6])
def test_executor_from_outside_equals_lax_scan_in_reverse(row):
    assert_equal_to_lax_scan(row, reverse=True)


def test_executor_from_outside_runs_both_loops():
    row = ONE_OF_EACH["lstm"]
    f = functools.partial(score, row, Kernel.NAME, False)
    text = str(jax.make_jaxpr(jax.grad(f, has_aux=True))(*draw(row)))
    assert text.count("pallas_call") == 2
    assert " scan[" not in text
