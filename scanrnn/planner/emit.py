"""Emit the bodies of a plan: all its loops, as they run on its machine."""

from __future__ import annotations

from scanrnn.planner import ops
from scanrnn.planner.bodies import Body, Target, forward
from scanrnn.planner.loops import Loop
from scanrnn.planner.reverse import reverse

# The loop for a whole chunk (or the whole sequence), then that for the steps left over.
_PARTS = ("", ", for the last steps")


def emit(plan) -> dict[str, Body]:
    """The bodies of a plan, by name.

    The reverse body is for a gradient of all inputs. For a gradient of fewer inputs it
    may be smaller.
    """
    target, found = Target(plan.rules), {}
    for loop, part in zip(plan.value_loops or plan.loops, _PARTS, strict=False):
        found[f"for values{part}"] = forward(loop, target)
    for loop, part in zip(plan.loops, _PARTS, strict=False):
        found[f"that records{part}"] = forward(loop.recording.loop, target)
        body = _reverse(loop, target)
        found |= {f"in reverse{part}": body} if body is not None else {}
    return found


def _reverse(loop: Loop, target) -> Body | None:
    """The reverse loop; None if there is none."""
    rules = loop.derivative
    moving = {*loop.graph.carry, *rules.cuts, *rules.inner_weights, *rules.inner_xs}
    try:
        step = loop.steps.inside(frozenset(filter(ops.is_inexact, moving)))
    except (NotImplementedError, TypeError, ValueError):
        return None  # JAX cannot differentiate the step by all of these at once
    if not step.carry and not step.ys:
        return None
    return reverse(loop, step, step.ys, target).body
