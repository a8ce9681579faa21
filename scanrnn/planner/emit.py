"""Emit the bodies of a plan: all its loops, as they run on its machine."""

from __future__ import annotations

from scanrnn.planner import ops
from scanrnn.planner.bodies import Body, Target, forward
from scanrnn.planner.loops import Loop
from scanrnn.planner.reverse import reverse
from scanrnn.planner.steps import inside_step


def emit(plan) -> dict[str, Body]:
    """The bodies of a plan, by name.

    The reverse body is for a gradient of all inputs. For a gradient of fewer inputs it
    may be smaller.
    """
    target = Target(plan.rules)
    values = plan.value_loops or plan.loops
    loops = {"for values": values[0], "that records": plan.loop.recording.loop}
    found = {name: forward(loop, target) for name, loop in loops.items()}
    found |= _reverse(plan.loop, target)
    if len(plan.loops) > 1:
        found["for the last steps"] = forward(plan.loops[1].recording.loop, target)
    return found


def _reverse(loop: Loop, target) -> dict[str, Body]:
    """The reverse loop, if there is one."""
    rules = loop.derivative
    moving = {*loop.graph.carry, *rules.cuts, *rules.inner_weights, *rules.inner_xs}
    try:
        step = inside_step(rules, frozenset(filter(ops.is_inexact, moving)))
    except (NotImplementedError, TypeError, ValueError):
        return {}  # JAX cannot differentiate the step by all of these at once
    if not step.carry and not step.ys:
        return {}
    return {"in reverse": reverse(loop, step, step.ys, target).body}
