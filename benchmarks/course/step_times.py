"""Where the time of a step goes on a CPU, from a profile of XLA's thunks.

The forum thread "How to speed up for loop in customized RNN?" profiled its LSTM: a
fifth of the time were products, and the rest pointwise operations of about 10
microseconds each.
"""

import collections
import functools
import pathlib
import tempfile
from typing import NamedTuple

import jax

from benchmarks import intervals, machine
from benchmarks.cases import Case
from benchmarks.compiled import hlo
from benchmarks.contenders import find
from benchmarks.measure import mark
from benchmarks.race import MIN_ROUNDS, SETTLED, ready
from benchmarks.tables import table

TITLE = "Where the time of a step goes"
ABOUT = """\
A training step under JAX's profiler, whole: microseconds for each of its T time steps,
with 95 % intervals. A thunk is what XLA's CPU runtime starts: a product, a fused group
of pointwise operations, or a copy, slice or join. Times of thunks that run side by side
in two threads are added, so that they may add up to more than the time of the clock.
The profile itself costs something, so this table says where time goes and not how fast
a program is. The thread's own profile of its LSTM (on a Titan X, eager): 20 % products,
70 % pointwise with slices and joins, about 10 microseconds each."""
KINDS = ("products", "pointwise", "moving data")
NAMES = ("lax_scan", "scanrnn")
CASES = (
    Case("lstm", 30, 32, 512, 512),
    Case("ln_mi_res_lstm", 30, 32, 512, 512),
    Case("lstm", 100, 2, 256, 128),
)
QUICK = (Case("lstm", 3, 2, 4, 4),)
_PRODUCTS = {"dot", "convolution", "custom-call"}
# Opcodes whose event spans the thunks inside, which have events of their own.
_AROUND = {"while", "conditional", "call"}
_ARITHMETIC = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "negate"),
    *(
        "tanh",
        "exponential",
        "logistic",
        "rsqrt",
        "sqrt",
        "reduce",
        "select",
        "compare",
    ),
    *("log", "abs", "reduce-window", "exponential-minus-one", "log-plus-one"),
}


class Thunk(NamedTuple):
    """One thunk that ran: its run, the name of its instruction, and nanoseconds."""

    run: int
    start: float
    name: str
    nanoseconds: float


def kinds(text: str) -> dict[str, str]:
    """The kind of every instruction of a compiled program that a thunk may run."""
    computations = hlo.parse(text).computations

    @functools.cache
    def inside(name):
        return set().union(*map(opcodes, computations[name]))

    def opcodes(one):
        # Arithmetic on whole numbers computes addresses: it only moves data.
        is_float = any(word in one.type for word in ("f32", "bf16", "f64"))
        own = {one.opcode} if is_float else set()
        return own.union(*map(inside, one.called.values()))

    def kind(one):
        found = opcodes(one)
        if found & _PRODUCTS:
            return "products"
        return "pointwise" if found & _ARITHMETIC else "moving data"

    return {
        one.name: kind(one)
        for instructions in computations.values()
        for one in instructions
        if one.opcode not in _AROUND
    }


def profile(runners: list, rounds: int) -> list[list[list[Thunk]]]:
    """The thunks of each round of each runner; runners take turns."""
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(rounds):
                for runner in runners:
                    runner.train()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        runs = _runs(jax.profiler.ProfileData.from_file(str(path)))
    assert len(runs) == rounds * len(runners), "the profile has lost runs"
    return [runs[number :: len(runners)] for number in range(len(runners))]


def _runs(data) -> list[list[Thunk]]:
    """The thunks of each run of a program, in the order of the runs."""
    runs = collections.defaultdict(list)
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    where = stats["run_id"], event.start_ns, stats["hlo_op"]
                    runs[stats["run_id"]].append(Thunk(*where, event.duration_ns))
    return sorted(runs.values(), key=lambda run: min(thunk.start for thunk in run))


def measure(quick: bool = False) -> list[dict]:
    """A record for each case: the time of each kind of thunk, by contender."""
    rows = []
    for case in QUICK if quick else CASES:
        runners = {name: ready(case, find(name)) for name in NAMES}
        wrong = [name for name, (_, verdict) in runners.items() if not verdict.passed]
        assert not wrong, f"wrong answers, so no times: {wrong}"
        others = machine.Others()
        rounds = 2 if quick else MIN_ROUNDS
        runs = profile([runner for runner, _ in runners.values()], rounds)
        found = {
            name: _times(runner, mine, case.T)
            for (name, (runner, _)), mine in zip(runners.items(), runs, strict=True)
        }
        sizes = f"{case.cell} T={case.T} B={case.B} D={case.D} H={case.H}"
        row = {"case": sizes, "disturbance": others.cores(), "contenders": found}
        rows.append(row | {"settled": all(n["settled"] for n in found.values())})
    return rows


def _times(runner, runs, T) -> dict:
    """Microseconds a step of each kind of thunk, and how many thunks there are."""
    kind_of = kinds(runner.compiled["train"].call.as_text())
    sums, numbers = {kind: [] for kind in KINDS}, set()
    for run in runs:
        spent = dict.fromkeys(KINDS, 0.0)
        known = [thunk for thunk in run if thunk.name in kind_of]
        for thunk in known:
            spent[kind_of[thunk.name]] += thunk.nanoseconds / 1e3 / T
        numbers.add(len(known))
        for kind, microseconds in spent.items():
            sums[kind].append(microseconds)
    assert len(numbers) == 1, f"the profile has lost thunks: {numbers}"
    (number,) = numbers
    total = intervals.median([sum(times) for times in zip(*sums.values(), strict=True)])
    return {
        "thunks": number / T,
        "each": total.value * T / number,
        "settled": total.width <= SETTLED,
        "rounds": len(runs),
        **{kind: intervals.median(times)._asdict() for kind, times in sums.items()},
    }


def report(rows: list[dict]) -> list[str]:
    """The part of the page, in Markdown."""
    lines = []
    for row in rows:
        for name, found in row["contenders"].items():
            total = sum(found[kind]["value"] for kind in KINDS)
            shares = []
            for kind in KINDS:
                value, low, high = found[kind].values()
                share = f"{100 * value / total:.0f}%"
                shares.append(f"{share}: {value:.3g} [{low:.3g}, {high:.3g}]")
            counts = f"{found['thunks']:.1f}", f"{found['each']:.2g}"
            lines.append([row["case"] + mark(row), name, *shares, *counts])
    heads = ("case", "contender", *KINDS, "thunks a step", "us each")
    return [ABOUT, table(heads, lines)]
