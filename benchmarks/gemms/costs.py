"""`python -m benchmarks.gemms.costs`: GNMT's layer, compiled for a GPU and a TPU.

The guide compares two ways to run an LSTM of 256 steps: with a batch of 64 for several
sizes, and with 1024 features for several batches. Here the two ways are planned loops
and `lax.scan`, in bfloat16 throughout. Each row is compiled in a process of its own.
A TPU's kernels are in `benchmarks.compiled.kernels`. It needs the compilers: see
`make compiled`.
"""

import argparse
import datetime
import functools
import itertools
import json
import pathlib

from benchmarks import origin
from benchmarks.cases import Case
from benchmarks.compiled import apart, summary
from benchmarks.compiled.kernels import RESULTS as KERNELS
from benchmarks.compiled.measure import Row, measure
from benchmarks.compiled.run import versions
from benchmarks.compiled.schedules import per_step as bundles
from benchmarks.compiled.targets import MACHINES, environment
from benchmarks.compiled.workers import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "gemms-compiled.json"
MODULE = "benchmarks.gemms.costs"
STEPS = 256
# Batch and features: the guide's two sweeps.
OVER_H = ((64, 128), (64, 256), (64, 512), (64, 1024))
OVER_B = ((8, 1024), (16, 1024), (32, 1024), (64, 1024), (128, 1024), (256, 1024))
WAYS = {"planned": "scanrnn", "lax.scan": "lax_scan"}
LIMIT = 900  # seconds for a row


def case(B: int, H: int) -> Case:
    """GNMT's layer with this batch and these features."""
    return Case("lstm", STEPS, B, H, H, "bfloat16", throughout=True)


def rows() -> list[tuple[str, int, int, str]]:
    """Machine, batch, features and way of every row."""
    sizes = dict.fromkeys((*OVER_H, *OVER_B))
    return [
        (machine, *size, way)
        for machine, size, way in itertools.product(("v5e", "h100"), sizes, WAYS)
    ]


def compile_row(number: int) -> dict:
    """The record of a row, compiled in this process."""
    import scanrnn
    from benchmarks.compiled import programs

    machine, B, H, way = rows()[number]
    # For a large batch the planner may choose `lax.scan`; here it must plan.
    programs._options = lambda machine: scanrnn.Options(
        machine=MACHINES[machine], implementation="planned"
    )
    found, _ = measure(Row(machine, case(B, H), "train", WAYS[way]))
    kept = ("launches", "cycles", "unpriced", "temp_bytes", "host_starts")
    forward, reverse, _ = summary.per_step(found)
    return {
        **{"machine": machine, "B": B, "H": H, "way": way},
        **{"forward": forward, "reverse": reverse, "chosen": choice(machine, B, H)},
        **{name: found[name] for name in kept if name in found},
    }


def choice(machine: str, B: int, H: int) -> str:
    """The executor that the planner chooses for a training step on this machine."""
    import jax

    import scanrnn
    from benchmarks.compiled.programs import shapes
    from benchmarks.contenders.lax_scan import naive

    found = []

    def scan(step, init, xs):
        plan = scanrnn.plan(step, init, xs, machine=MACHINES[machine])
        found.append(plan.executor.name)
        return jax.lax.scan(step, init, xs)

    problem = shapes(case(B, H))
    model = naive(problem, scan)
    jax.eval_shape(model.apply, model.params, problem.xs)
    return found[0]


def run(path: pathlib.Path = RESULTS) -> None:
    """Compiles every row that the file lacks at this commit, and keeps each at once."""
    about = {"date": datetime.date.today().isoformat(), "commit": commit()}
    about["versions"] = versions()
    done = load(path)
    kept = done["rows"] if done.get("commit") == about["commit"] else []
    have = {(r["machine"], r["B"], r["H"], r["way"]) for r in kept if "error" not in r}
    for number, row in enumerate(rows()):
        if row in have:
            continue
        names = dict(zip(("machine", "B", "H", "way"), row, strict=True))
        variables = functools.partial(_variables, row[0])
        found = names | apart.record(MODULE, number, variables, LIMIT)
        kept = [r for r in kept if (*map(r.get, names),) != row] + [found]
        path.write_text(json.dumps(about | {"rows": kept}, indent=1) + "\n")
        print(*row, found.get("error", "compiled"), flush=True)


def _variables(machine: str, folder: str) -> dict[str, str]:
    return environment(machine)


def commit() -> str:
    """The commit of the package and of these benchmarks, marked if files changed."""
    found = origin.commit()
    return found["commit"] + "+" * found["dirty"]


def kernels(path: pathlib.Path = KERNELS) -> dict[tuple[int, int], float]:
    """Bundles of a step of the TPU's kernels, forward and in reverse, by batch and H.

    They come from the committed page of kernels. Sizes that it lacks are left out.
    """
    wanted, found = json.loads(path.read_text())["rows"], {}
    for B, H in dict.fromkeys((*OVER_H, *OVER_B)):
        row = wanted.get(case(B, H).name, {})
        if "kernels" not in row:
            continue
        longest = {}
        for kernel in row["kernels"]:
            one = bundles(kernel)
            longest[kernel["name"]] = max(one, longest.get(kernel["name"], 0.0))
        found[B, H] = sum(longest.values())
    return found


def cycles(rows: list[dict], way: str) -> dict[tuple[int, int], float]:
    """The TPU's cycles of a training step, for each time step, by batch and H."""
    wanted = [r for r in rows if (r["machine"], r["way"]) == ("v5e", way)]
    return {(r["B"], r["H"]): r["cycles"] / STEPS for r in wanted if "cycles" in r}


def loops(rows: list[dict], way: str) -> dict[tuple[int, int], float]:
    """The TPU's cycles of a step of both loops of training, by batch and H."""
    wanted = [r for r in rows if (r["machine"], r["way"]) == ("v5e", way)]
    return {
        (r["B"], r["H"]): r["forward"] + r["reverse"]
        for r in wanted
        if r.get("forward") and r.get("reverse")
    }


def floor(B: int, H: int) -> float:
    """Cycles that the matrix units need for a step, forward and in reverse.

    There are four, of 128 x 128; each takes one row of the batch per cycle.
    """
    return 2 * 4 * B * H * H / (4 * 128**2)


def load(path: pathlib.Path = RESULTS) -> dict:
    """The results file; without rows if there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def main() -> None:
    """Compiles all rows, or the one that another process asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row is None:
        run()
    else:
        print(json.dumps(compile_row(args.row)))


if __name__ == "__main__":
    main()
