"""The interface of an executor, and where it runs: kernels only on one device."""

from __future__ import annotations

from typing import Any, Protocol

from scanrnn.executors import planned
from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body, Results, Target
from scanrnn.planner.ir.graph import Values
from scanrnn.planner.loops import Loop
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import Rules


class Executor(Protocol):
    """One way to run the loops of a plan: a module, or any object.

    All its decisions are in its rules. It has a name, rules and reasons to refuse, and
    either `lower`, which runs one loop, or `run`. The rest is optional:

    - `run(plan, weights, init, xs, differentiated)`: runs a whole plan by a program of
      its own, which JAX differentiates, in place of `lower`;
    - `describe(plan) -> list[str]`, with `run`: what runs, in words, for `print(plan)`;
    - `runs_in_parallel(body) -> bool`: whether it runs a loop in parallel over time;
    - `refuse_early(plan) -> str | None`: reasons that do not depend on its rules. It
      gets the plan of `planned`: if it refuses that, no plan under its own rules is
      made, and `refuse` is not asked;
    - `split(plan, assign) -> Plan`: a plan that it does not refuse early, with `parts`,
      whose executors are chosen by `assign`. Their costs are its cost;
    - `work(plan) -> costs.Work | None`: what its loops cost, for the estimate;
    - `PLATFORM`: it runs kernels of its own, for devices of that platform; and
      `PROVEN`: the kinds of machines on which their results were right. On any other
      machine it runs only if it is asked for by name, or if `tune` has checked it;
    - `holds(plan) -> str | None` and `WEIGHTS`, for `advise`: why its memory does not
      suffice for a plan, and where it keeps the weights, in words.

    Attributes:
      NAME: its name, as in `implementation=`.

    Example:
      >>> from scanrnn.executors import EXECUTORS, Executor
      >>> planned: Executor = EXECUTORS["planned"]
      >>> planned.NAME
      'planned'
    """

    NAME: str

    def rules(self, machine: Machine) -> Rules:
        """What it prefers on a machine. Its plans are made under these rules."""
        ...

    def refuse(self, plan: Plan) -> str | None:
        """Why it does not run a plan, or None."""
        ...

    def lower(
        self, body: Body, constants: Values, carry: list, arrays: Values
    ) -> Results:
        """Run a body over all steps.

        Args:
          body: the loop: one step as a graph, and where its rows lie.
          constants: values of the graph's weights, by variable.
          carry: values of the graph's carry before the first step.
          arrays: arrays of all steps, and edges of shifts, by variable.

        Returns:
          The final carry, and the ys stacked to `[T, ...]`.
        """
        ...


def bound_to_jax(plan: Plan) -> str | None:
    """Why a plan's loop cannot be rebuilt, only run as it is; or None."""
    if plan.stages is None:
        return plan.unplanned
    if not plan.defer:
        why = "a jax.custom_vjp is in it, or a loop with most of its products, say"
        return f"only JAX may differentiate the step ({why})"
    if not isinstance(plan.length, int):
        return "the number of steps is not known"
    return None


def has_kernels(executor: Executor) -> bool:
    """Whether an executor runs kernels of its own, for one platform.

    Args:
      executor: one of `EXECUTORS`, or your own.

    Returns:
      Whether it does.

    Example:
      >>> from scanrnn.executors import EXECUTORS, has_kernels
      >>> has_kernels(EXECUTORS["planned"]), has_kernels(EXECUTORS["pallas_gpu"])
      (False, True)
    """
    return getattr(executor, "PLATFORM", None) is not None


def by_name(executor: Executor, machine: Machine) -> bool:
    """Whether an executor runs on a machine only if it is asked for by name.

    Args:
      executor: one of `EXECUTORS`, or your own.
      machine: the machine.

    Returns:
      Whether it does: it has kernels, and they are not proven on that machine.

    Example:
      >>> from scanrnn.executors import EXECUTORS, by_name
      >>> from scanrnn.machines import MACHINES
      >>> by_name(EXECUTORS["pallas_gpu"], MACHINES["a100"])
      True
    """
    proven = getattr(executor, "PROVEN", ())
    return has_kernels(executor) and machine.kind not in proven


def on(executor: Executor, loop: Loop, machine: Machine, alone: bool) -> Any:
    """The executor that runs a loop on a machine; `alone` says if on one device.

    It is `planned` in place of an executor with kernels if there are several devices or
    if the platform is not the planned one. XLA cannot divide a kernel among devices.
    """
    here = alone and machine.platform == loop.machine.platform
    return executor if here or not has_kernels(executor) else planned


def target_of(executor: Executor, loop: Loop, machine: Machine, alone: bool) -> Target:
    """What bodies of a loop are made for, where this executor runs it.

    These are the rules under which a plan for that machine would be made.
    """
    rules = executor.rules(machine)
    return Target(rules.with_features_first(loop.features_first), alone)
