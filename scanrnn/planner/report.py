"""What a plan says of itself: a table of contractions, and why things are so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from scanrnn.planner import ops
from scanrnn.planner.graph import CARRY, TIME, needed, variables

PATHS = ("layer-to-layer", "recurrent", "readout")
PHASES = ("forward", "activation gradient", "weight gradient")


class Gemm(NamedTuple):
    """One row of the table: `count` contractions of `[M, K] @ [K, N]`.

    M is the side of the weights (gates times features), N of the data (batch,
    or batch times steps where steps are batched), as in NVIDIA's tables.
    """

    path: str
    phase: str
    M: int
    N: int
    K: int
    count: int
    where: str

    @property
    def flops(self) -> int:
        """Floating-point operations of all `count` of them."""
        return 2 * self.M * self.N * self.K * self.count


class Tuning(NamedTuple):
    """What the tuner measured: median seconds by candidate, and what it chose."""

    objective: str
    chosen: str
    seconds: dict[str, float]
    remembered: str | None


def gemms(plan) -> tuple[Gemm, ...]:
    """Every contraction of a plan, forward and backward."""
    if plan.stages is None:
        eqns = [(e, "loop") for e in plan.source.eqns]
        graph, deferred = plan.source, frozenset()
    else:
        graph = plan.stages.graph
        eqns = list(_placed(plan.stages))
        deferred = plan.derivative.region if plan.options.defer else frozenset()
    bits, recurrent = graph.depends(), set(needed(graph.eqns, graph.carry_out))
    rows = [
        row
        for eqn, where in eqns
        if ops.is_heavy(eqn)
        for row in _rows(eqn, where, bits, eqn in recurrent, deferred, plan)
    ]
    counts: dict[Gemm, int] = {}
    for row in rows:
        one = row._replace(count=0)
        counts[one] = counts.get(one, 0) + row.count
    rows = [row._replace(count=n) for row, n in counts.items()]
    rows.sort(key=lambda r: (PHASES.index(r.phase), PATHS.index(r.path)))
    return tuple(rows)


def _placed(stages) -> Iterator:
    """Each equation with the stage it runs in; weights-only ones are left out."""
    in_loop = set(stages.loop.eqns)
    before = set(needed(stages.graph.eqns, stages.hoisted))
    bits = stages.graph.depends()
    for eqn in stages.graph.eqns:
        if eqn in in_loop:
            yield eqn, "loop"
        elif any(bits[v] for v in variables(eqn.invars)):
            yield eqn, "before" if eqn in before else "after"


def _rows(eqn, where, bits, recurrent, deferred, plan) -> Iterator[Gemm]:
    kinds = [0 if ops.is_literal(a) else bits[a] for a in eqn.invars]
    if not any(kinds):
        return
    path = PATHS[0] if max(kinds) == TIME else PATHS[1] if recurrent else PATHS[2]
    weight = 0 if kinds[0] == 0 else 1
    M, N, K = _sizes(eqn, weight)
    T = plan.length if isinstance(plan.length, int) else 1
    at_once = plan.chunk or T
    chunks = -(-T // at_once)
    steps, batched = (T, 1) if where == "loop" else (chunks, at_once)
    yield Gemm(path, PHASES[0], M, N * batched, K, steps, where)
    # In reverse, what came before the loop comes after it.
    mirrored = {"before": "after", "loop": "loop", "after": "before"}[where]
    yield Gemm(path, PHASES[1], K, N * batched, M, steps, mirrored)
    if kinds[weight] == 0 or eqn in deferred:
        late = where != "loop" or eqn in deferred
        count, depth = (chunks, N * at_once) if late else (T, N)
        yield Gemm(path, PHASES[2], K, M, depth, count, "after" if late else "loop")
    else:
        yield Gemm(path, PHASES[2], K, M, N * batched, steps, where)


def _sizes(eqn, weight) -> tuple[int, int, int]:
    """M (weight side), N (data side) and K of one step's contraction."""
    if eqn.primitive.name == "conv_general_dilated":
        out, kernel = eqn.outvars[0].aval, eqn.invars[1].aval
        spec = eqn.params["dimension_numbers"]
        M = kernel.shape[spec.rhs_spec[0]]
        return M, ops.size_of(out) // M, ops.size_of(kernel) // M
    contract, batch = eqn.params["dimension_numbers"]

    def free(i):
        used = {*contract[i], *batch[i]}
        shape = eqn.invars[i].aval.shape
        return _product(d for j, d in enumerate(shape) if j not in used)

    shape = eqn.invars[0].aval.shape
    K = _product(shape[j] for j in contract[0])
    many = _product(shape[j] for j in batch[0])
    return free(weight), free(1 - weight) * many, K


def _product(sizes) -> int:
    return math.prod(d if isinstance(d, int) else 64 for d in sizes)


def render(plan) -> str:
    """The whole report as text."""
    lines = [_headline(plan), *_tuning(plan), ""]
    lines += _table(plan.gemms)
    if plan.stages is not None:
        lines += ["", *_moves(plan), *_stays(plan), "", *_residuals(plan)]
    return "\n".join(lines)


def _headline(plan) -> str:
    direction = " in reverse" if plan.reverse else ""
    head = f"{plan.length} steps{direction}"
    if plan.plain is not None:
        return f"Plan: {head}, by lax.scan as it stands: {plan.plain}."
    here = [e for e in plan.stages.loop.eqns if ops.is_heavy(e)]
    was = [e for e in plan.stages.graph.eqns if ops.is_heavy(e)]
    if plan.chunk:
        head += f" in chunks of {plan.chunk}"
        if plan.options.chunk is None and plan.options.residuals != "chunked":
            head += f" (hoisted at once it would take {_bytes(plan.hoisted_bytes)})"
    return (
        f"Plan: {head}, {len(here)} GEMM{'s' * (len(here) != 1)} per step in the loop "
        f"(of {len(was)} in the step after splitting and merging)."
    )


def _tuning(plan) -> Iterator[str]:
    if plan.tuning is None:
        return
    objective, chosen, seconds, remembered = plan.tuning
    times = ", ".join(f"{name} {1e3 * s:.4g} ms" for name, s in seconds.items())
    where = f"remembered in {remembered}" if remembered else "not remembered"
    yield f"Tuned ({objective}): {chosen} is used; medians: {times}; {where}."


def _table(rows) -> list[str]:
    head = ("path", "phase", "M", "N", "K", "count", "where")
    body = [tuple(str(v) for v in row) for row in rows]
    if not body:
        return ["No contractions."]
    widths = [max(len(r[i]) for r in (head, *body)) for i in range(len(head))]

    def line(row):
        cells = [
            v.rjust(w) if 2 <= i <= 5 else v.ljust(w)
            for i, (v, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(head), line(["-" * w for w in widths]), *map(line, body)]


def _moves(plan) -> Iterator[str]:
    stages, rules = plan.stages, plan.derivative
    names = {}
    for eqn, where in _placed(stages):
        names.setdefault(where, []).append(eqn.primitive.name)
    crossing = ", ".join(v.aval.str_short() for v in stages.hoisted)
    yield f"Before the loop: {_tally(names.get('before'))}" + (
        f"; into the loop go {crossing} per step." if crossing else "."
    )
    yield f"In the loop:     {_tally(names.get('loop'))}."
    yield f"After the loop:  {_tally(names.get('after'))}."
    if rules.cuts and plan.options.defer:
        cuts = ", ".join(v.aval.str_short() for v in rules.cuts)
        yield (
            "Weight gradients: after the reverse loop, batched over time, from "
            f"cotangents of {cuts} per step."
        )
    if plan.invariant:
        yield f"Carry leaves {list(plan.invariant)} never change: treated as weights."


def _tally(names) -> str:
    if not names:
        return "nothing"
    counts = {n: names.count(n) for n in dict.fromkeys(names)}
    return ", ".join(f"{c} {n}" if c > 1 else n for n, c in counts.items())


def _stays(plan) -> Iterator[str]:
    """Contractions and weights that a pass had to leave alone, and why."""
    loop, rules = plan.stages.loop, plan.derivative
    bits = loop.depends()
    for eqn in loop.eqns:
        name = eqn.primitive.name
        ins = variables(eqn.invars)
        recurrent = any(bits[v] & CARRY for v in ins)
        if ops.has_subjaxpr(eqn) and name != "custom_jvp_call":
            yield f"Left in the loop: {name} ({_why(name)})."
        elif ops.is_heavy(eqn) and not recurrent:
            yield f"Left in the loop: a time-parallel {name} ({_hoist_reason(plan)})."
    if rules.inner_weights & {w for w in loop.weights if ops.is_inexact(w)}:
        shapes = [w.aval.str_short() for w in loop.weights if w in rules.inner_weights]
        yield (
            "Gradients accumulated in the reverse loop, as lax.scan does, for "
            f"{', '.join(shapes)}: read by an equation that is left alone."
        )
    if not plan.options.defer:
        yield "Weight gradients stay in the reverse loop: Options(defer=False)."


def _hoist_reason(plan) -> str:
    if not plan.options.hoist:
        return "Options(hoist=False)"
    return "what it reads cannot be batched over time"


def _why(name) -> str:
    reasons = {
        "cond": "batched over time it would run both branches at every step",
        "while": "batched over time it would run as long as the longest step",
        "scan": "a loop of its own; plan it where it is called",
        "custom_vjp_call": "its derivative rule is the author's",
        "custom_linear_solve": "its derivative rule is its own",
    }
    return reasons.get(name, "the planner does not look inside")


def _residuals(plan) -> Iterator[str]:
    ours, theirs = plan.residual_bytes
    if ours is None:
        yield "Residuals: the step has no reverse-mode derivative."
        return
    share = f" ({ours / theirs:.0%})" if theirs else ""
    yield (
        f"Kept for the reverse loop ({plan.options.residuals}): {_bytes(ours)}, "
        f"lax.scan keeps {_bytes(theirs)}{share}."
    )
    saved = [v.aval.str_short() for v in plan.derivative.saved]
    carry = [
        plan.stages.loop.carry[i].aval.str_short() for i in plan.derivative.carry_saved
    ]
    yield f"Per step: {_list(saved)}; carries before the step: {_list(carry)}."


def _list(names) -> str:
    return ", ".join(names) or "none"


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.4g} {unit}"
        n /= 1000
    return f"{n:.4g} GB"
