"""Which leaves of a carry are affine: those of a table of loops, and of each cell."""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from benchmarks.programs import cells as programs
from scanrnn.planner.parallel import affine
from tests.affine_table import LOOPS
from tests.cell_table import CELLS

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "parallel_in_time.md"


def mostly_slow(names, quick):
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def kinds(graph):
    found = {k: group.kind for group in affine.groups(graph) for k in group.leaves}
    return tuple(found[k] for k in range(len(graph.carry)))


def found_in(step, init, xs):
    plan = scanrnn.plan(step, init, xs)
    graph = plan.stages.loop
    return plan, dict(zip(graph.carry, kinds(graph), strict=True))


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_found_to_be_what_it_is(name):
    wanted, step, init, xs = LOOPS[name]()
    plan, found = found_in(step, init, xs)
    # The planner treats a carry that never changes as a weight.
    told = iter(found.values())
    leaves = range(len(wanted))
    assert wanted == tuple(
        "constant" if i in plan.invariant else next(told) for i in leaves
    )
    for kind in found.values():
        assert kind in str(plan)


def test_table_of_the_page_is_that_of_the_tests():
    rows = re.findall(
        r"^\| `(\w+)` \| ([a-z-]+(?:, [a-z-]+)*) \|$", PAGE.read_text(), re.M
    )
    assert dict(rows) == {name: ", ".join(made().kinds) for name, made in LOOPS.items()}


ALL = sorted({row.factory for row in CELLS.values()})


def cells_of_the_page():
    """The kinds of the leaves of each cell, forward and in reverse, as documented."""
    (table,) = re.findall(r"^\| cells of .*?\n\n", PAGE.read_text(), re.M | re.S)
    rows = [line.strip("|").split("|") for line in table.split("\n")[2:-2]]
    return {
        name: tuple({*kinds.strip().split(", ")} for kinds in found)
        for names, *found in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_page_has_every_cell():
    assert sorted(cells_of_the_page()) == ALL


@pytest.mark.parametrize("name", mostly_slow(ALL, {"mlstm", "sru", "conv_gru"}))
def test_cell_is_found_to_be_what_the_page_says(name):
    wrapped = programs.WRAPPERS.get(name)
    make = getattr(scanrnn.cells, name)
    cell = make() if wrapped is None else make(scanrnn.cells.lstm(), **wrapped)
    pixels = (4, 4) if cell.num_feature_axes > 1 else ()
    xs = jnp.ones((5, 2, *pixels, 16), jnp.float32)
    params = cell.init(jax.random.key(0), 16, 16)
    step, rows = cell.prepare(params, xs, jax.random.key(1))
    carry = cell.initial_carry(params, xs[0], jnp.float32)
    bodies = scanrnn.plan(step, carry, rows, implementation="planned").bodies
    count = len(jax.tree.leaves(carry))
    found = tuple(
        {*kinds(bodies[body].graph)[:count]} for body in ("for values", "in reverse")
    )
    assert found == cells_of_the_page()[name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gla", "diagonal"), ("mamba2", "diagonal")]
    + [(name, "sequential") for name in ("deltanet", "gated_deltanet", "rwkv7")],
)
def test_memory_of_many_features_is_diagonal_or_coupled(name, kind):
    cell = getattr(scanrnn.cells, name)()
    params = cell.init(jax.random.key(0), 16, 16)
    xs = jnp.ones((5, 2, 16))
    step, carry = (
        functools.partial(cell.step, params),
        cell.initial_carry(params, xs[0]),
    )
    (group,) = affine.groups(scanrnn.plan(step, carry, xs).stages.loop)
    assert group.kind == kind
    assert group.why == ("16 numbers are coupled" if kind == "sequential" else "")
