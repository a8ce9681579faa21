"""The loop of a plan for one number of steps, with every choice made."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from jax.extend.core import JaxprEqn, Var

from scanrnn.machines import Machine
from scanrnn.planner.derivative.gradient import Derivative
from scanrnn.planner.derivative.regions import Regions, find_regions
from scanrnn.planner.derivative.saved import derive
from scanrnn.planner.derivative.steps import Steps
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.rows import Place, Rows, Shift, pair_up
from scanrnn.planner.passes.layout import lay_out
from scanrnn.planner.passes.packs import find_packs, pack_numbers, places
from scanrnn.planner.rules import Rules

T = TypeVar("T")

# Several threads may differentiate a loop at the same time.
_deriving = threading.RLock()


class made_once(Generic[T]):
    """A property that is made once, also if several threads ask for it at once.

    Most of them make new variables. `functools.cached_property` has no lock since
    Python 3.12, and a lock for each property before.
    """

    def __init__(self, make: Callable[[Loop], T]):
        """Take the function that makes it."""
        self.make = make

    def __get__(self, loop: Loop | None, owner: type) -> T:
        """Make it, or wait for the thread that does; later it is a plain attribute."""
        if loop is None:
            return self  # type: ignore[return-value]
        with _deriving:
            known, name = vars(loop), self.make.__name__
            if name not in known:
                known[name] = self.make(loop)
            return known[name]


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop graph and how it runs; the graph's `ys` are stacked.

    Attributes:
      graph: one step of the loop.
      length: the number of steps.
      reverse: whether the last step comes first.
      unroll: the unroll factor as asked for; 0 for fully unrolled.
      residuals: the policy for what is kept for the reverse loop.
      laid_out: whether gates may be read and kept in another layout than the step has.
      machine: the machine that it runs on.
      rules: what its executor prefers on that machine.
      spare: time inputs that nothing reads after the loop.
      over: for some ys, by index, the variable whose buffer they reuse; None if that
        is still to be decided.
      norm_steps: steps in a piece of the norms before the loop; None for all at once.
      features_first: `Options.features_first`, for its bodies on every target.
    """

    graph: Graph
    length: Any
    reverse: bool
    unroll: int
    residuals: str
    laid_out: bool
    machine: Machine
    rules: Rules
    spare: frozenset[Var]
    over: Mapping[int, Var] | None = None
    norm_steps: int | None = None
    features_first: bool | None = None

    @made_once
    def regions(self) -> Regions:
        """The regions where contributions from outside enter."""
        rules = self.rules
        return find_regions(self.graph, rules.sums_gains_in_loop, rules.gradients_after)

    @made_once
    def steps(self) -> Steps:
        """The steps of this loop's derivative, with new variables."""
        return derive(self.graph, self.regions, self.residuals, self.rules)

    @property
    def derivative(self) -> Derivative:
        """The derivative rules of this loop."""
        return self.steps.derivative

    @made_once
    def laid(self) -> tuple[Graph, dict[Var, Place]]:
        """The graph as it runs, and where its additional time inputs lie in others."""
        pieces = self.laid_out and self.rules.reads_gates_apart
        return lay_out(self.graph) if pieces else (self.graph, {})

    @made_once
    def overwritten(self) -> Mapping[int, Var]:
        """For some ys, by index, the variable whose buffer they reuse."""
        if self.over is not None:
            return self.over
        spare = [v for v in self.graph.xs if v in self.spare]
        return pair_up(self.graph.ys, spare) if self.in_place else {}

    @property
    def in_place(self) -> bool:
        """Whether stacked arrays may reuse buffers that are no longer needed.

        Not in an unrolled loop: there a write could come before an earlier step's
        reads are done.
        """
        return (
            self.rules.overwrites
            and self.laid_out
            and self.unroll == 1
            and self.residuals != "everything"
            and isinstance(self.length, int)
            and self.length > 1
        )

    @property
    def precomputes(self) -> bool:
        """Whether part of a reverse step runs before the loop, for a whole chunk."""
        return self.rules.recompute.precomputes and self.residuals == "recompute"

    @made_once
    def dead(self) -> tuple[Var, ...]:
        """Time inputs that are no longer read; the reverse loop may reuse them."""
        if self.rules.zero_fills or self.over is not None:
            return ()
        read = self.derivative.read_inside | self.derivative.read_outside
        read = self.recording.rows.sources(read)
        return tuple(v for v in self.graph.xs if v in self.spare and v not in read)

    @made_once
    def recording(self) -> Recording:
        """This loop, which also stacks what its derivative reads, each value once."""
        graph, derivative = self.graph, self.derivative
        packs = self._packs(kept=True)
        inside = dict(itertools.chain(*map(places, (*packs, *self._joined))))
        apart = {*inside, *derivative.recomputed.ys}
        saved = [v for v in derivative.saved if v not in apart]
        before = [graph.carry[i] for i in derivative.carry_saved]
        shifts, edges = _shifts(self, saved, before)
        direct = [v for v in dict.fromkeys([*saved, *before]) if v not in shifts]
        direct = [*(pack.outvars[0] for pack in packs), *direct]
        more = [v for v in direct if v not in graph.ys]
        loop = self._stacking(more, packs)
        at = {v: i for i, v in reversed([*enumerate(loop.graph.ys)])}
        sources = [s.of for s in shifts.values() if s.of in at]
        arrays = {v: at[v] for v in (*direct, *sources)}
        return Recording(
            loop, Rows(self.length, places=inside, shifts=shifts), arrays, edges
        )

    @made_once
    def read_inside(self) -> tuple[Var, ...]:
        """The arrays and edges that the loop of tangents reads, the `dead` first."""
        derivative, recording = self.derivative, self.recording
        sources = recording.rows.sources(derivative.rows(derivative.read_inside))
        kept = (
            *self.graph.xs,
            *recording.arrays,
            *recording.edges,
            *self.recomputed.ys,
        )
        found = dict.fromkeys((*self.dead, *(v for v in kept if v in sources)))
        return tuple(found)

    @made_once
    def recomputed(self) -> Graph:
        """The graph that recomputes, for all steps at once, what was not stacked."""
        graph, packs = self.derivative.recomputed, self._joined
        inside = {v for pack in packs for v in pack.invars}
        ys = [pack.outvars[0] for pack in packs]
        ys += [v for v in graph.ys if v not in inside]
        return dataclasses.replace(graph, eqns=(*graph.eqns, *packs), ys=tuple(ys))

    @made_once
    def _joined(self) -> list[JaxprEqn]:
        """The equations that join recomputed values."""
        return self._packs(kept=False)

    def _packs(self, kept: bool) -> list[JaxprEqn]:
        """The equations that join saved values: kept ones, or recomputed ones."""
        rules, derivative = self.rules, self.derivative
        split = any(map(ops.is_split, map(ops.aval, self.graph.inputs)))
        if split or not self.laid_out or self.residuals == "everything":
            return []
        recomputed = derivative.recomputed.ys
        saved = [v for v in derivative.saved if (v in recomputed) != kept]
        gates = find_packs(self.graph, saved) if rules.packs_gates else []
        numbers = pack_numbers(self.graph, saved) if rules.packs_statistics else []
        return [*gates, *numbers]

    def _stacking(self, ys: Iterable[Var], eqns: Iterable[JaxprEqn]) -> Loop:
        """This loop with more ys, made by the equations `eqns` where needed.

        The old ys keep their buffers: under `vmap` a function and its derivative rule
        must make each output in the same way.
        """
        graph, derivative, over = self.graph, self.derivative, self.overwritten
        taken = {*over.values(), *derivative.read_inside, *derivative.read_outside}
        spare = [v for v in graph.xs if v in self.spare and v not in taken]
        ys = tuple(ys)
        more = pair_up(ys, spare) if self.in_place else {}
        over = {**over, **{i + len(graph.ys): v for i, v in more.items()}}
        eqns = (*derivative.differentiated, *eqns)
        graph = dataclasses.replace(graph, ys=(*graph.ys, *ys), eqns=eqns)
        return dataclasses.replace(self, graph=graph, spare=frozenset(spare), over=over)


class Recording(NamedTuple):
    """What a loop stacks for its derivative, and where it lies.

    Attributes:
      loop: the loop that records.
      rows: how the values of each variable are read.
      arrays: the stacked variables, each with its index among the loop's ys.
      edges: for each shift, where its missing first or last value is: the index of the
        carry, and True for the first carry or False for the final one.
    """

    loop: Loop
    rows: Rows
    arrays: Mapping[Var, int]
    edges: Mapping[Var, tuple[int, bool]]

    def by_variable(self, carry, final, stacked) -> dict[Var, Any]:
        """Arrays and edges by variable."""
        ends = {True: carry, False: final}
        found = {v: stacked[i] for v, i in self.arrays.items()}
        return found | {v: ends[first][i] for v, (i, first) in self.edges.items()}


def _shifts(loop, saved, before) -> tuple[dict[Var, Shift], dict[Var, tuple]]:
    """The variables that are read as shifts of stacked ones, and their edges."""
    graph = loop.graph
    pairs = list(enumerate(zip(graph.carry, graph.carry_out, strict=True)))
    pairs = [(i, (old, new)) for i, (old, new) in pairs if not ops.is_literal(new)]
    shifts, edges = {}, {}
    for i, (old, new) in pairs:
        if new in saved and old in graph.ys and new not in graph.ys:
            shifts[new], edges[new] = Shift(old, loop.reverse), (i, False)
    stacked = {*graph.ys, *saved, *before} - shifts.keys()
    for i, (old, new) in pairs:
        wanted = old in before and old not in graph.ys
        if wanted and new in stacked and not _leads(shifts, new, old):
            shifts[old], edges[old] = Shift(new, not loop.reverse), (i, True)
    return shifts, edges


def _leads(shifts, v, to) -> bool:
    """Whether a variable is a shift of a given one, perhaps through others."""
    while v in shifts and v is not to:
        v = shifts[v].of
    return v is to
