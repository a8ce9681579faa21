"""The plan: what will run, as a value that can be inspected and passed back."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import Var

from scanrnn.planner import counts, layout, ops, report, rewrite, tidy
from scanrnn.planner.classify import Stages, bits_of, classify
from scanrnn.planner.gradient import Derivative, derive
from scanrnn.planner.graph import Graph, has_own_rule, struct
from scanrnn.planner.norms import Norms, find_norms
from scanrnn.planner.options import Options
from scanrnn.planner.residuals import residual_bytes
from scanrnn.planner.trace import Traced, inline, is_checkpointed

# A step of fewer operations than this takes less time than what surrounds it: with
# the work outside the loop a planned sequence is no faster, and up to 1.3x slower.
TINY = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """How one step function on given shapes will run.

    `print(plan)` shows every contraction with its path, phase, sizes and count,
    what moved before and after the loop, what stayed and why, and the bytes
    kept for the reverse loop.

    Attributes:
      options: the passes that were asked for.
      source: the step as traced; what `implementation="scan"` runs.
      stages: where each equation runs.
      consts: arrays the passes found inside the step's nested calls.
      invariant: indices of carries the step returns unchanged (they are weights).
      length: number of steps.
      reverse: whether the loop runs from the last step to the first.
      unroll: steps per trip of the loop.
      plain: why the plan is `lax.scan` itself, or None.
      programs: ways to run it, `(plan, weights, init, xs) -> (carry, ys)` on
        flat values, by the name of their executor.
      tuning: how the tuner came to these options, or None.
    """

    options: Options
    source: Graph
    stages: Stages | None
    consts: tuple[Any, ...]
    invariant: tuple[int, ...]
    length: Any
    reverse: bool
    unroll: int | bool
    plain: str | None
    programs: Mapping[str, Callable]
    tuning: report.Tuning | None = None

    @property
    def chunk(self) -> int | None:
        """Steps per chunk, or None if the sequence is run as a whole.

        So it is where a step changes the weak types of its carry: what they are after
        one chunk is not what the next one has to start with.
        """
        pairs = zip(self.source.carry, self.source.carry_out, strict=True)
        changes = any(ops.is_weak(v) != ops.is_weak(out) for v, out in pairs)
        if not isinstance(self.length, int) or changes:
            return None
        size, most = self.options.chunk, report.MOST_AT_ONCE
        if size is None and self.residuals == "chunked":
            size = math.isqrt(self.length)
        elif size is None and self.outside_bytes > most:
            size = max(1, self.length * most // self.outside_bytes)
        return None if size is None or size >= self.length else size

    @functools.cached_property
    def residuals(self) -> str:
        """What the forward loop keeps: the options' policy, or that of the step."""
        own = "chunked" if is_checkpointed(self.source) else "minimal"
        return self.options.residuals or own

    @functools.cached_property
    def defer(self) -> bool:
        """Whether the loop has a derivative rule of ours.

        Not where the author gave a part of it one by `jax.custom_vjp`: that need not
        be the derivative, so only JAX may differentiate it, and once for each order.
        Nor where the rule of a `jax.custom_jvp` cannot be batched over time.
        """
        assert self.stages is not None
        eqns = self.stages.loop.eqns
        owned = any(has_own_rule(e) or not ops.has_batched_rule(e) for e in eqns)
        return self.options.defer and not owned

    @property
    def laid_out(self) -> bool:
        """Whether gates are read in pieces: not where JAX differentiates the loop."""
        return self.options.layout and self.defer

    @functools.cached_property
    def norms(self) -> Norms | None:
        """Norms before the loop, where they are differentiated in pieces."""
        length = self.chunk or self.length
        if self.stages is None or not isinstance(length, int) or not self.laid_out:
            return None
        return find_norms(self.stages.graph, self.stages.hoisted, length)

    @property
    def hoisted_bytes(self) -> int:
        """Bytes of what is computed before the loop, for all steps."""
        if self.stages is None or not isinstance(self.length, int):
            return 0
        return self.length * sum(ops.bytes_of(v) for v in self.stages.hoisted)

    @functools.cached_property
    def outside_bytes(self) -> int:
        """Bytes of what is computed for all steps at once, before or after the loop."""
        if self.stages is None or not isinstance(self.length, int):
            return 0
        made = {"before": 0, "loop": 0, "after": 0}
        for eqn, where in counts.placed(self.stages):
            if ops.is_heavy(eqn):
                made[where] += self.length * sum(map(ops.bytes_of, eqn.outvars))
        return max(self.hoisted_bytes, made["before"], made["after"])

    @functools.cached_property
    def compiled(self) -> Callable:
        """The planned program, compiled once for all calls with this plan.

        It is kept here, not in a table beside the plan: a table's entry would hold
        the plan that is its own key, and neither would ever be freed.
        """
        return jax.jit(functools.partial(self.programs["planned"], self))

    @functools.cached_property
    def derivative(self) -> Derivative:
        """The derivative rules of the loop."""
        assert self.stages is not None
        return derive(self.stages.loop, self.residuals)

    @functools.cached_property
    def gemms(self) -> tuple[counts.Gemm, ...]:
        """Every contraction, forward and backward, with its sizes and count."""
        return counts.gemms(self)

    @functools.cached_property
    def residual_bytes(self) -> tuple[int | None, int | None]:
        """Bytes kept for the reverse loop: by this plan, and by `lax.scan`.

        Inputs and outputs are not counted: they are there anyway.
        """
        args = self._arguments()
        names = ("planned" if self.plain is None else "scan", "scan")
        ours, theirs = (
            residual_bytes(functools.partial(self._flat, n), args) for n in names
        )
        return ours, theirs

    def _arguments(self) -> list[jax.ShapeDtypeStruct]:
        graph = self.source
        per_step = [struct(v) for v in graph.xs]
        xs = [s.update(shape=(self.length, *s.shape)) for s in per_step]
        return [*map(struct, (*graph.weights, *graph.carry)), *xs]

    def _flat(self, name, *args):
        graph = self.source
        n, m = len(graph.weights), len(graph.weights) + len(graph.carry)
        groups = args[:n], args[n:m], args[m:]
        return self.programs[name](self, *map(list, groups))

    def signature(self) -> tuple:
        """What must agree for this plan to fit a step: sizes and dtypes."""
        avals = [
            [(ops.aval(v).shape, str(ops.aval(v).dtype)) for v in group]
            for group in (self.source.weights, self.source.carry, self.source.xs)
        ]
        return (avals, self.length, self.reverse, self.unroll)

    def __str__(self) -> str:
        """The report, as a table of contractions and a list of decisions."""
        return report.render(self)


def make_plan(
    traced: Traced,
    options: Options,
    programs: Mapping[str, Callable],
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Plan:
    """Plan a traced step. `programs` are the ways to run it, by name."""
    graph = traced.graph
    base = functools.partial(
        Plan,
        options=options,
        source=graph,
        length=traced.length,
        reverse=reverse,
        unroll=unroll,
        programs=programs,
    )
    plain = _left_alone(graph, traced.length, options)
    if plain is not None:
        return base(stages=None, consts=(), invariant=(), plain=plain)
    graph, invariant = _without_invariant(graph)
    graph, consts = inline(graph)
    graph, more = _rewrite(graph, options)
    if (plain := _too_small(graph, options)) is not None:
        return base(stages=None, consts=(), invariant=(), plain=plain)
    stages = classify(graph, options.hoist, options.sink)
    plan = base(stages=stages, consts=(*consts, *more), invariant=invariant, plain=None)
    moved = stages.hoisted or len(stages.loop.eqns) < len(graph.eqns)
    if not moved and not (plan.defer and plan.derivative.cuts):
        plain = "nothing in the step can be moved, merged or deferred"
        return base(stages=None, consts=(), invariant=(), plain=plain)
    return plan


def _left_alone(graph, length, options) -> str | None:
    """Why a step is not planned at all, or None."""
    if options.plain:
        return "Options(plain=True)"
    if isinstance(length, int) and length == 0:
        return "there are no steps (length is 0)"
    effects = {str(e) for eqn in graph.eqns for e in eqn.effects}
    if effects:
        return f"the step has side effects, whose order is kept ({', '.join(effects)})"
    if any(eqn.primitive.name == "rng_uniform" for eqn in graph.eqns):
        return "the step draws random numbers without a key (lax.rng_uniform)"
    return None


def _too_small(graph, options) -> str | None:
    """Why a step is not worth planning, or None."""
    bits, loops = graph.depends(), any(map(ops.has_subjaxpr, graph.eqns))
    work = sum(ops.work_of(e) for e in graph.eqns if bits_of(e, bits))
    if options.plain is False or loops or work >= TINY:
        return None
    return (
        f"a step is only {work} operations, too few to gain from a plan "
        "(Options(plain=False) makes one)"
    )


def _without_invariant(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Carries that are returned unchanged are weights in disguise."""
    pairs = list(zip(graph.carry, graph.carry_out, strict=True))
    fixed = tuple(i for i, (v, out) in enumerate(pairs) if v is out)

    def rest(group) -> tuple:
        return tuple(v for i, v in enumerate(group) if i not in fixed)

    invariant: tuple[Var, ...] = tuple(graph.carry[i] for i in fixed)
    graph = dataclasses.replace(
        graph,
        weights=(*graph.weights, *invariant),
        carry=rest(graph.carry),
        carry_out=rest(graph.carry_out),
    )
    return graph, fixed


_PASSES = (
    rewrite.share,
    tidy.turn_products,
    rewrite.split,
    rewrite.merge,
    tidy.gather_slices,
    tidy.cancel_splits,
    tidy.regroup_sums,
    layout.push_splits,
)


def _rewrite(graph, options) -> tuple[Graph, list]:
    enabled = dict(split=options.split, merge=options.merge, push_splits=options.layout)
    consts: list = []
    for rule in _PASSES:
        if enabled.get(rule.__name__, True):
            graph, new = rule(graph)
            consts += new
    return graph, consts
