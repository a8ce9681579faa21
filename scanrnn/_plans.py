"""The plans that are kept, so that no step is planned twice.

Steps of one structure share their plans, and with them all that JAX traces for a plan.
So a network of many equal layers is planned and traced once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from operator import is_
from typing import Any, NamedTuple

import jax

from scanrnn.executors import EXECUTORS
from scanrnn.planner import Plan, Traced
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.structure import structure

# So many plans of a step are kept, the newest ones: every call may have another length.
_MOST_PLANS = 256
# So many structures are kept, those that were used last.
_MOST_STRUCTURES = 256


class _Kept(NamedTuple):
    """Plans, and the executors that were registered when they were made."""

    plans: dict[Hashable, Plan]
    executors: tuple[Any, ...]

    def is_current(self) -> bool:
        """Whether the same executors are registered now."""
        now = tuple(EXECUTORS.values())
        return len(now) == len(self.executors) and all(map(is_, now, self.executors))


# Several threads may plan at the same time.
_lock = threading.Lock()
# The plans of each traced step. JAX returns the same jaxpr object for the same
# function and shapes, and keeps it as long as the function lives.
_of_steps: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
# The plans of each structure, under each setting of JAX.
_of_structures: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


def plans_of(traced: Traced) -> dict[Hashable, Plan]:
    """The plans that are kept for a traced step, by what they were made for."""
    found = _of_steps.get(traced.source)
    # Executors may be registered at any time.
    if found is None or not found.is_current():
        found = _of_steps[traced.source] = _shared(traced.graph)
    return found.plans


def keep(plans: dict[Hashable, Plan], key: Hashable, plan: Plan) -> None:
    """Keep a plan, in the place of the oldest one if there are many."""
    with _lock:
        plans[key] = plan
        if len(plans) > _MOST_PLANS:
            plans.pop(next(iter(plans)), None)


def forget() -> None:
    """Forget the plans that are shared under the present settings of JAX."""
    with _lock:
        _of_structures.pop(_setting(), None)


def _shared(graph: Graph) -> _Kept:
    """The plans of all steps with the structure of a graph."""
    program, executors = structure(graph), tuple(EXECUTORS.values())
    if program is None:
        return _Kept({}, executors)
    # Executors need not be hashable. What is kept holds them, so no id is used twice.
    key = program, *map(id, executors)
    setting = _setting()
    with _lock:
        structures = _of_structures.setdefault(setting, {})
        kept = structures.pop(key, None) or _Kept({}, executors)
        structures[key] = kept
        if len(structures) > _MOST_STRUCTURES:
            structures.pop(next(iter(structures)), None)
    return kept


def _setting() -> Any:
    """An object for the present settings of JAX, such as that of 64-bit numbers.

    JAX returns the same jaxpr for the same function, as long as no setting that changes
    what is traced differs.
    """
    return _nothing.trace().jaxpr.jaxpr


@jax.jit
def _nothing():
    return 0
