"""Emit the bodies of a plan: all its loops, as they run on a target."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from jax.extend.core import Var

from scanrnn.planner import bodies, norms, ops, reverse
from scanrnn.planner.bodies import Body, Target
from scanrnn.planner.graph import Graph
from scanrnn.planner.loops import Loop
from scanrnn.planner.steps import Step

# The loop for a whole chunk (or the whole sequence), then that for the steps left over.
_PARTS = ("", ", for the last steps")
NORMS = "of norms in reverse"


@dataclasses.dataclass(frozen=True, eq=False)
class Bodies:
    """All loops that run for one `Loop` on one target. It is made once for each target.

    Which loops a gradient runs depends on what has tangents and cotangents, and JAX
    says this only when it transposes.
    """

    loop: Loop
    target: Target

    @functools.cached_property
    def forward(self) -> Body:
        """The forward loop, for values or one that records."""
        return bodies.forward(self.loop, self.target)

    def reverse(self, step: Step, given: tuple[Var, ...]) -> reverse.Reverse:
        """The reverse loop of a step of tangents, and the work around it."""
        return reverse.reverse(self.loop, step, given, self.target)

    def norms(
        self, graph: Graph, moving: Sequence[Var], given: Iterable[Var]
    ) -> norms.Pieces | None:
        """The loop for the cotangents of norms; None if all steps are done at once."""
        # A piece has the size that suits the rules of the plan on one device.
        if self.loop.piece is None or self.target != Target(self.loop.rules):
            return None
        return norms.pieces(graph, self.loop, moving, given)


def emit(plan) -> dict[str, Body]:
    """The bodies of a plan, by name.

    The bodies of a gradient are for a gradient of all inputs. For a gradient of fewer
    inputs they may be smaller.
    """
    target, found = Target(plan.rules), {}
    if not plan.defer:
        pairs = zip(plan.loops, _PARTS, strict=False)
        name = "that JAX differentiates"
        return {f"{name}{part}": bodies.plain(loop.graph, loop) for loop, part in pairs}
    for loop, part in zip(plan.value_loops or plan.loops, _PARTS, strict=False):
        found[f"for values{part}"] = Bodies(loop, target).forward
    for loop, part in zip(plan.loops, _PARTS, strict=False):
        found[f"that records{part}"] = Bodies(loop.recording.loop, target).forward
        made = Bodies(loop, target)
        more = {"in reverse": _reverse(made), NORMS: _norms(made, plan.stages.norms)}
        found |= {f"{name}{part}": body for name, body in more.items() if body}
    return found


def _reverse(made: Bodies) -> Body | None:
    """The reverse loop; None if there is none."""
    graph, rules = made.loop.graph, made.loop.derivative
    moving = {*graph.carry, *rules.cuts, *rules.inner_weights, *rules.inner_xs}
    try:
        step = made.loop.steps.inside(frozenset(filter(ops.is_inexact, moving)))
    except (NotImplementedError, TypeError, ValueError):
        return None  # JAX cannot differentiate the step by all of these at once
    if not step.carry and not step.ys:
        return None
    return made.reverse(step, step.ys).body


def _norms(made: Bodies, graph: Graph) -> Body | None:
    """The loop for the cotangents of norms; None if there is none."""
    try:
        found = made.norms(graph, [*filter(ops.is_inexact, graph.inputs)], graph.ys)
    except (NotImplementedError, TypeError, ValueError):
        return None  # JAX cannot differentiate the norms by all of their inputs
    return found and found.body
