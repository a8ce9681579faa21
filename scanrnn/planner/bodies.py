"""Bodies: the loops that run, as a plan gives them to its executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from jax.extend.core import Var

from scanrnn.machines import Machine
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.rule_groups import ScanRules
from scanrnn.planner.rules import Rules

# What a loop gives: its final carry, and its ys stacked to `[T, ...]`.
Results = tuple[list, list]


class Target(NamedTuple):
    """What bodies are made for: rules, and whether one device runs the whole loop."""

    rules: Rules
    alone: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """One loop that runs.

    A trip is one iteration of the loop; it may run several steps.

    Attributes:
      graph: one step.
      rows: the number of steps, their direction, how many steps of a trip write their
        rows together, and where the rows of each step lie.
      unroll: the unroll factor; each of these steps writes its own rows. 0 means fully
        unrolled: there is no loop.
      transposed: for some weights of the graph, the matrix that each is the transpose
        of.
      features_first: for inputs of the graph that lie features first, the variables
        that are their transposes; empty if the loop does not lie features first. If it
        does, all its values of two axes do.
      own: rows that each step computes itself. They are not recomputed where they are
        stacked.
      copied: rows that are copied at each step, so that they are not sliced from the
        sequence in a loop over all elements of a larger value.
      row_tile: as in `Rules`, how the arrays lie that it reads and stacks.
      scans: as in `Rules`, which form a parallel scan takes.
      separate: whether the steps of a trip are compiled one by one, so that nothing is
        fused across them.
      machine: the machine of the plan.
      keeps_inputs: whether a derivative of this loop by JAX keeps only what each step
        reads.
    """

    graph: Graph
    rows: Rows
    unroll: int = 1
    transposed: Mapping[Var, Var] = dataclasses.field(default_factory=dict)
    features_first: Mapping[Var, Var] = dataclasses.field(default_factory=dict)
    own: tuple[Var, ...] = ()
    copied: tuple[Var, ...] = ()
    row_tile: tuple[int, int, int] | None = None
    scans: ScanRules = ScanRules()
    separate: bool = False
    machine: Machine | None = None
    keeps_inputs: bool = False
