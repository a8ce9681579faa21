"""Where an executor runs: kernels only on one device of the planned platform."""

from __future__ import annotations

from typing import Any

from scanrnn.executors import planned
from scanrnn.executors._executor import Executor
from scanrnn.machines import Machine
from scanrnn.planner.loops import Loop


def by_name(executor: Executor) -> bool:
    """Whether an executor runs only if it is asked for by name."""
    return getattr(executor, "PLATFORM", None) is not None


def on(executor: Executor, loop: Loop, machine: Machine, alone: bool) -> Any:
    """The executor that runs a loop on a machine; `alone` says if on one device.

    It is `planned` in place of an executor with kernels if there are several devices or
    if the platform is not the planned one. XLA cannot divide a kernel among devices.
    """
    here = alone and machine.platform == loop.machine.platform
    return executor if here or not by_name(executor) else planned
