"""What an executor is: a module, or any object, with these attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from jax.extend.core import Var

from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import Rules


class Executor(Protocol):
    """One way to run the loops of a plan. It decides nothing that its rules do not say.

    Attributes:
      NAME: under which it is asked for, as `implementation`.
    """

    NAME: str

    def rules(self, machine: Machine) -> Rules:
        """What it likes on a machine; a plan is made for it under these."""
        ...

    def refuse(self, plan: Plan) -> str | None:
        """Why it does not run a plan here, or None."""
        ...

    def lower(
        self,
        body: Body,
        constants: Mapping[Var, Any],
        carry: list,
        known: Mapping[Var, Any],
    ) -> tuple[list, list]:
        """Runs a body over all steps: the final carry, and its ys stacked.

        Args:
          body: the loop: one step as a graph, and where its rows lie.
          constants: values of the graph's weights, by variable.
          carry: values of the graph's carry before the first step.
          known: arrays of all steps, and edges of shifts, by variable.
        """
        ...
