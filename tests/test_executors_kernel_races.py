"""Races and bounds of kernels for a TPU: an interpreter simulates its memories."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import scanrnn
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels import kernel, tiles
from scanrnn.planner.emit import emit
from tests.cell_table import CELLS
from tests.test_executors_kernels import KINDS, drawn, numbers

NAME = pallas_tpu.NAME
ROWS = [
    pytest.param(CELLS["lstm"], id="lstm"),
    *(pytest.param(*p.values, id=p.id, marks=pytest.mark.slow)
      for p in KINDS if p.id != "lstm"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def simulated():
    """The interpreter keeps the memories of a device until it is told otherwise."""
    pltpu.reset_tpu_interpret_mode_state()
    yield
    pltpu.reset_tpu_interpret_mode_state()


def assert_free_of_races(body, cores=1):
    """A body runs as in the plain interpreter, and without races or stray reads.

    The interpreter raises an error for a read or write out of bounds. If it has two
    cores, they share the first axis of the grid, the parts of the batch.
    """
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    graph, rows = body.graph, body.rows
    sources = rows.sources(graph.xs)
    lead = {v: () if v in rows.shifts else (rows.length,) for v in sources}
    known = {v: numbers(v, *lead[v]) for v in sources}
    args = {v: numbers(v) for v in graph.weights}, list(map(numbers, graph.carry))
    wanted = kernel.run(body, *args, known, interpret=True)
    tpu = pltpu.InterpretParams(
        detect_races=True,
        num_cores_or_threads=cores,
    )
    got = kernel.run(body, *args, known, interpret=tpu)
    for a, b in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    races = interpret_pallas_call.races
    assert races is not None and not races.races_found


def bodies_of(row):
    params, xs, carry = drawn(row, jnp.float64)
    step = functools.partial(row.cell.step, params)
    return emit(scanrnn.plan(step, carry, xs, implementation=NAME)).values()


@pytest.mark.parametrize("row", ROWS)
def test_kernel_has_no_race_and_stays_in_bounds(row):
    for body in bodies_of(row):
        assert_free_of_races(body)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gru", "deltanet"])
def test_kernel_on_two_cores_has_no_race(name, monkeypatch):
    """Each core of a TPU v5p runs half of the batch, at the same time."""
    monkeypatch.setattr(tiles, "cores_of", lambda machine: 2)
    monkeypatch.setattr(tiles, "_ROWS", 1)
    for body in bodies_of(CELLS[name]):
        assert tiles.part_of(body)[2] == 2
        assert_free_of_races(body, cores=2)


def test_kernel_of_products_in_parts_has_no_race(monkeypatch):
    """One core runs the six parts of the batch one after the other."""
    monkeypatch.setattr(tiles, "_MOST", 2**10)

    def step(h, x):
        h = jnp.tanh(jnp.einsum("bij,bj->bi", x, h))
        return h, h

    draw, keys = jax.random.normal, jax.random.split(jax.random.key(0), 2)
    h, xs = draw(keys[0], (6, 16)), draw(keys[1], (3, 6, 16, 16))
    for body in emit(scanrnn.plan(step, h, xs, implementation=NAME)).values():
        assert tiles.part_of(body)[2] > 1
        assert_free_of_races(body)


def test_race_of_a_kernel_is_found():
    """A kernel whose two cores write the same row: the interpreter can tell."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    from jax.experimental import pallas as pl

    def add(x, y):
        y[...] = x[...] + pl.program_id(0).astype(x.dtype)

    here = pl.BlockSpec((8, 128), lambda i: (0, 0))
    struct = jax.ShapeDtypeStruct((8, 128), "float32")
    parallel = pltpu.CompilerParams(dimension_semantics=("parallel",))
    tpu = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2)

    def run():
        with jax.enable_x64(False):
            pl.pallas_call(
                add, out_shape=struct, grid=(4,), in_specs=[here], out_specs=here,
                interpret=tpu, compiler_params=parallel,
            )(jnp.ones((8, 128), "float32")).block_until_ready()  # fmt: skip

    if jax.__version_info__ >= (0, 12):
        with pytest.raises(RuntimeError, match="RACE DETECTED"):
            run()
    else:
        run()
        assert interpret_pallas_call.races.races_found
