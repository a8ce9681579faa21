"""Where an executor runs: kernels on the machine that they were planned for, alone."""

from __future__ import annotations

from typing import Any

from scanrnn.executors import planned
from scanrnn.executors._executor import Executor
from scanrnn.machines import Machine
from scanrnn.planner.loops import Loop


def by_name(executor: Executor) -> bool:
    """Whether it runs only where it is asked for by name."""
    return getattr(executor, "PLATFORM", None) is not None


def on(executor: Executor, loop: Loop, machine: Machine, alone: bool) -> Any:
    """Who runs a loop on a machine, if one device runs all of it or not.

    XLA does not divide a kernel among devices, and one for another platform is none.
    """
    here = alone and machine.platform == loop.machine.platform
    return executor if here or not by_name(executor) else planned
