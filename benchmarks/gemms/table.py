"""The products of a plan, beside the formulas of NVIDIA's guide to recurrent layers.

Letters: G gates, S steps, B batch, D input features, H hidden features, F steps of a
layer-to-layer product (the guide's unroll factor). The guide's input features are the
hidden features of the layer before. A product multiplies `[M, K]` by `[K, N]`.
"""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np

import scanrnn
from benchmarks import steps
from scanrnn._advise.layers import Sizes, plan_of
from scanrnn.planner import Plan
from scanrnn.planner.gemms import PATHS, PHASES, Gemm

GATES = {"lstm": 4, "gru": 3, "elman": 1}
# All products of letters differ, so that no side can be taken for another.
SIZES = Sizes(T=96, B=40, D=320, H=512)
CHUNK = 16
# The guide is about GPUs. A test says that a CPU has the same products.
MACHINE = "h100"


class Formula(NamedTuple):
    """Sides of a product as letters, which are multiplied, and how often it runs."""

    M: str
    N: str
    K: str
    count: str

    def of(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The numbers for these sizes."""
        return tuple(math.prod(sizes[x] for x in side.split()) for side in self)


FORMULAS = {
    ("recurrent", "forward"): Formula("G H", "B", "H", "S"),
    ("recurrent", "activation gradient"): Formula("H", "B", "G H", "S"),
    ("recurrent", "weight gradient"): Formula("H", "G H", "B S", "1"),
    ("layer-to-layer", "forward"): Formula("G H", "B F", "D", "S/F"),
    ("layer-to-layer", "activation gradient"): Formula("D", "B F", "G H", "S/F"),
    ("layer-to-layer", "weight gradient"): Formula("D", "G H", "B S", "1"),
}


class Line(NamedTuple):
    """A line of the table.

    Attributes:
      layer: the cell, and where its step comes from.
      path: "recurrent" or "layer-to-layer".
      phase: "forward", "activation gradient" or "weight gradient".
      guide: M, N, K and count by the guide's formula.
      ours: the plan's products.
    """

    layer: str
    path: str
    phase: str
    guide: tuple[int, ...]
    ours: tuple[Gemm, ...]

    @property
    def verdict(self) -> str:
        """Whether the plan has the guide's product, or the same work in parts."""
        found = [(row.M, row.N, row.K, row.count) for row in self.ours]
        if found == [self.guide]:
            return "the same"
        work = sum(math.prod(one) for one in found)
        same = "the same work" if work == math.prod(self.guide) else "other work"
        return f"{same}, {sum(row.count for row in self.ours)} products"


def plan_step(cell: str, sizes: Sizes, **options) -> Plan:
    """The plan of a step as a user writes it, `benchmarks.steps`; nothing runs."""
    row = steps.CELLS[cell]
    shapes = row.shapes(sizes.D, sizes.H).items()
    params = {name: np.zeros(shape, np.float32) for name, shape in shapes}
    carry = jax.ShapeDtypeStruct((sizes.B, sizes.H), np.float32)
    init = carry if row.carries == 1 else (carry,) * row.carries
    xs = jax.ShapeDtypeStruct((sizes.T, sizes.B, sizes.D), np.float32)
    return scanrnn.plan(functools.partial(row.step, params), init, xs, **options)


def lines(machine: str = MACHINE) -> list[Line]:
    """The table: plain steps, one of them in chunks, and cells of the library."""
    found = []
    for cell in GATES:
        plain = _lines(f"{cell}, G={GATES[cell]}", cell, plan_step, machine=machine)
        ours = _lines(f"{cell} of `scanrnn.cells`", cell, _plan_cell, machine=machine)
        differ = [line.ours for line in plain] != [line.ours for line in ours]
        found += plain + (ours if differ else [])
    title = f"lstm in chunks, F={CHUNK}"
    return found + _lines(title, "lstm", plan_step, machine=machine, chunk=CHUNK)


def _plan_cell(cell, sizes, machine):
    made = getattr(scanrnn.cells, cell)()
    return plan_of(made, sizes, "float32", scanrnn.machines.MACHINES[machine])


def _lines(title, cell, planner, **options):
    plan = planner(cell, SIZES, **options)
    F = plan.chunk or SIZES.T
    values = SIZES._asdict() | {"G": GATES[cell], "F": F, "S": SIZES.T, "1": 1}
    values["S/F"] = SIZES.T // F
    return [
        Line(title, path, phase, FORMULAS[path, phase].of(values), rows)
        for path in PATHS
        for phase in PHASES
        if (rows := products(plan, path, phase))
    ]


def products(plan: Plan, path: str, phase: str) -> tuple[Gemm, ...]:
    """The plan's products of a path and a phase, without what is recomputed."""
    return tuple(
        row
        for row in plan.gemms
        if (row.path, row.phase) == (path, phase) and row.where != "recomputed"
    )
