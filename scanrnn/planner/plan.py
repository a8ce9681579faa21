"""The plan: what will run, as a value that you can inspect and pass to `scan`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from scanrnn.machines import Machine
from scanrnn.planner import costs
from scanrnn.planner.bodies import Body
from scanrnn.planner.derivative.gradient import Derivative
from scanrnn.planner.emit import emit
from scanrnn.planner.fission import SubLoop
from scanrnn.planner.gemms import Gemm, placed, planned_gemms, scan_gemms
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.batching import REFUSALS
from scanrnn.planner.ir.functions import of_some
from scanrnn.planner.ir.graph import Graph, struct, variables
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.classify import Stages
from scanrnn.planner.options import UNCHANGED, Options, Tuning
from scanrnn.planner.report import shown, summary
from scanrnn.planner.rules import Rules


class Candidate(NamedTuple):
    """An executor for a plan: its estimate, or why it refuses.

    Attributes:
      executor: the executor, with its name, and a method that runs plans.
      cost: the estimate of a training step, or None if it refuses.
      refusal: why it refuses, or None.
    """

    executor: Any
    cost: costs.Cost | None
    refusal: str | None

    @property
    def name(self) -> str:
        """The name of the executor."""
        return self.executor.name

    @property
    def seconds(self) -> float:
        """The estimate in seconds; infinite if it refuses."""
        return self.cost.seconds if self.cost else math.inf


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """How one step function on given shapes will run on a machine.

    `print(plan)` has a line for each loop that runs. It lists every contraction with
    its path, phase, sizes and count, and says why not more is moved out of the loop.
    `plan.describe(long=True)` adds every decision. A notebook shows the same.

    Attributes:
      options: the options that were asked for.
      machine: the machine that the plan was made for.
      rules: what its executor prefers on that machine.
      source: the step as traced; `implementation="scan"` runs this.
      stages: where each equation runs; None if the step is not planned.
      consts: arrays that the passes found inside the step's nested calls.
      invariant: indices of carries that the step returns unchanged; they are treated
        as weights.
      length: the number of steps.
      reverse: whether the loop runs from the last step to the first.
      unroll: the unroll factor as asked for, 0 for fully unrolled.
      residuals: the policy for what the forward loop keeps.
      chunk: steps per chunk, or None if the sequence runs as a whole.
      passing: bytes per step that live only as long as their chunk, if they decide the
        length of a chunk; else 0.
      value_chunk: steps per chunk if no gradient is asked for, or None if that is the
        same as with a gradient.
      defer: whether the planner's derivative rule is used for the loop.
      loops: the loop for the whole length or for a chunk; then the loop for the rest,
        if chunks do not divide the length.
      value_loops: the same for chunks without a gradient; empty if they do not differ.
      parts: the plans of several loops that run one after the other in place of one,
        each with its `SubLoop`; empty unless the executor splits the loop.
      unplanned: why there is nothing to plan, or None.
      refusal: why XLA's loops do not run the plan, or None.
      executor: what runs it: `executor.name` is its name, and `executor.run(plan,
        weights, init, xs)` runs the plan on flat values. None if none is chosen yet.
      candidates: every executor, with its estimate or its refusal.
      tuning: how the tuner chose these options, or None.
    """

    options: Options
    machine: Machine
    rules: Rules
    source: Graph
    length: Any
    reverse: bool
    unroll: int
    residuals: str
    stages: Stages | None = None
    consts: tuple[Any, ...] = ()
    invariant: tuple[int, ...] = ()
    chunk: int | None = None
    passing: int = 0
    value_chunk: int | None = None
    defer: bool = False
    loops: tuple[Loop, ...] = ()
    value_loops: tuple[Loop, ...] = ()
    parts: tuple[tuple[SubLoop, Plan], ...] = ()
    unplanned: str | None = None
    refusal: str | None = None
    executor: Any = None
    candidates: tuple[Candidate, ...] = ()
    tuning: Tuning | None = None

    @property
    def reason(self) -> str | None:
        """Why the plan is `lax.scan` itself, or None."""
        if self.executor is not None and self.executor.name != UNCHANGED:
            return None
        return self.unplanned or self.refusal or "it is the cheapest by estimate"

    @property
    def step(self) -> Graph:
        """The step, with the calls in it (a `jax.jit`, say) opened if it is planned."""
        return self.source if self.stages is None else self.stages.graph

    @property
    def loop(self) -> Loop:
        """The loop for the whole length, or for a chunk."""
        return self.loops[0]

    @property
    def derivative(self) -> Derivative:
        """The derivative rules of the loop."""
        return self.loop.derivative

    @property
    def hoisted_bytes(self) -> int:
        """Bytes of what is computed before the loop and read later, for all steps."""
        if self.stages is None or not isinstance(self.length, int):
            return 0
        return self.length * ops.bytes_in(self.stages.hoisted)

    @property
    def outside_bytes(self) -> int:
        """Bytes computed for all steps before or after the loop, whichever is more."""
        if self.stages is None or not isinstance(self.length, int):
            return 0
        made = {"before": 0, "loop": 0, "after": 0}
        computed: set = set()
        for eqn, where in placed(self.stages):
            if ops.is_heavy(eqn) or eqn.primitive.name == ops.RANDOM_BITS:
                # An operand that was computed there too is in memory at the same time.
                held = {*eqn.outvars, *computed.intersection(variables(eqn.invars))}
                made[where] += self.length * ops.bytes_in(held)
            if where != "loop":
                computed.update(eqn.outvars)
        return max(self.hoisted_bytes, made["before"], made["after"])

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the weights that contractions outside the loop read."""
        if self.stages is None:
            return 0
        bits, found = self.stages.graph.depends, set()
        for eqn, where in placed(self.stages):
            if ops.is_heavy(eqn) and where != "loop":
                found |= {v for v in variables(eqn.invars) if not bits[v]}
        return ops.bytes_in(found)

    @functools.cached_property
    def compiled(self) -> Callable:
        """The planned program, compiled once for all calls with this plan.

        If a call is differentiated, other loops run than those for values. With
        `differentiated=True` the latter are not traced in vain.

        The plan itself keeps it. An entry in a separate table would refer to the plan
        that is its own key, and neither would ever be freed.
        """
        run = functools.partial(self.executor.run, self)
        return jax.jit(run, static_argnames="differentiated")

    @functools.cached_property
    def emitted(self) -> dict[str, Body]:
        """The bodies of all loops, by name, also if an executor runs none of them."""
        return emit(self)

    @property
    def bodies(self) -> dict[str, Body]:
        """The bodies that run, by name; none if the program is not made of bodies."""
        whole = self.executor is not None and self.executor.whole
        return {} if whole or self.reason is not None else self.emitted

    @property
    def cost(self) -> costs.Cost:
        """The estimated cost of a training step, by which the executor was chosen."""
        name = self.executor.name
        return next(c.cost for c in self.candidates if c.cost and c.name == name)

    @functools.cached_property
    def gemms(self) -> tuple[Gemm, ...]:
        """Every contraction, forward and backward, with its sizes and count."""
        if self.parts:
            return tuple(row for _, plan in self.parts for row in plan.gemms)
        gemms = scan_gemms if self.reason is not None else planned_gemms
        return gemms(self, self.length if isinstance(self.length, int) else 1)

    @functools.cached_property
    def residual_bytes(self) -> tuple[int | None, int | None]:
        """Bytes kept for the reverse loop: by this plan, and by `lax.scan`.

        Inputs and outputs are not counted. None if there is no reverse mode.
        """
        graph = self.source
        args = list(map(struct, (*graph.weights, *graph.carry)))
        args += [struct(v, self.length) for v in graph.xs]
        scan = next(c.executor for c in self.candidates if c.name == UNCHANGED)

        def kept(executor) -> int | None:
            return _residual_bytes(
                lambda *a: executor.run(self, *graph.groups(a)), args
            )

        return kept(self.executor), kept(scan)

    def signature(self) -> tuple:
        """What must agree for this plan to fit a call, such as shapes and dtypes."""
        avals = [
            [(ops.aval(v).shape, str(ops.aval(v).dtype)) for v in group]
            for group in (self.source.weights, self.source.carry, self.source.xs)
        ]
        return (avals, self.length, self.reverse, self.unroll)

    def describe(self, *, long: bool = False) -> str:
        """Describe the plan: its loops, the contractions, and why not more is moved.

        Args:
          long: whether to add every decision: which operations run where, and what is
            kept and recomputed at each step.

        Returns:
          The text; `print(plan)` prints the short one.
        """
        return shown.as_text(self, long)

    def __copy__(self) -> Plan:
        """The plan itself: it never changes."""
        return self

    def __deepcopy__(self, memo) -> Plan:
        """Likewise."""
        return self

    def __reduce__(self):
        """Refuse to be pickled."""
        raise TypeError(
            "plan: a Plan holds a traced program and cannot be pickled; keep "
            "plan.options, and make the plan again with scanrnn.plan"
        )

    def __str__(self) -> str:
        """The short description."""
        return self.describe()

    def __repr__(self) -> str:
        """The first line of the description."""
        return f"<{summary.headline(self)}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return shown.as_html(self)


def _residual_bytes(program, args) -> int | None:
    """The bytes that a program keeps for its reverse pass, besides inputs and outputs.

    They are counted by tracing `jax.vjp`; nothing runs. None if the program has no
    reverse mode.
    """
    active = [i for i, a in enumerate(args) if ops.is_inexact_dtype(a.dtype)]

    def linear(*args):
        f = of_some(program, args, active)
        outs, pull = jax.vjp(f, *(args[i] for i in active))
        return jax.tree.leaves(outs), jax.tree.leaves(pull)

    try:
        closed, (outs, _) = jax.make_jaxpr(linear, return_shape=True)(*args)
    except REFUSALS:
        return None
    jaxpr = closed.jaxpr
    free = {*jaxpr.invars, *variables(jaxpr.outvars[: len(outs)])}
    kept = {v for v in variables(jaxpr.outvars[len(outs) :]) if v not in free}
    return ops.bytes_in(v for v in kept if ops.aval(v).shape)
