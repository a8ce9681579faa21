"""Which orientations of a loop the tuner measures: features first, or batch first."""

from __future__ import annotations

from scanrnn.planner import Plan
from scanrnn.planner.emit import of_training, puts_features_first


def orientations(plan: Plan) -> list[bool]:
    """Values of `Options.features_first` that change how the loops of a plan lie.

    There are none on other machines than a CPU, where no rule prefers features first.
    There are none for a loop without products of a batch with a matrix.
    """
    free = plan.options.features_first is None and plan.rules.features_first is not None
    if plan.machine.platform != "cpu" or not free or plan.unplanned or not plan.defer:
        return []
    if not puts_features_first(plan.loop.graph, plan.rules.with_features_first(True)):
        return []
    loops = of_training(plan.emitted)
    whole = all(body.features_first for body in loops)
    some = any(puts_features_first(body.graph, plan.rules) for body in loops)
    return [asked for asked, is_so in ((True, whole), (False, not some)) if not is_so]
