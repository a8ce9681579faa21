"""Which programs are timed on a GPU, and in which ways each is run."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import scanrnn
from benchmarks import gate, programs
from benchmarks.cases import Case, problem
from benchmarks.contenders import Absent, find
from benchmarks.contenders._base import Contender
from benchmarks.parallel import loops
from benchmarks.parallel import rows as parallel
from benchmarks.programs._base import normal
from benchmarks.programs.measure import Checked, contender

SCAN, OURS, HAND = loops.SCAN, "scanrnn", loops.HAND
GRAPH = "torch (cuDNN) in a CUDA graph"
LOOPS, KERNEL = "planned", "pallas_gpu"
# Contenders of `benchmarks.contenders`, by their names here.
CELLS = {
    SCAN: "lax_scan",
    OURS: "scanrnn",
    GRAPH: "torch_graph",
    **{name: f"scanrnn:{name}" for name in (LOOPS, KERNEL)},
}
# Loops that are parallel over time.
AFFINE = parallel.LEAKY, "minGRU", "LRU", "SRU"
# The size of loops with matrix memories: `lax.scan` keeps the memories of all steps.
MEMORY = 1024, 4, 512
# Products of float32 round their operands to TF32, as is usual on a GPU.
TOLERANCE = 4e-2


class Row(NamedTuple):
    """A program, and the ways to run it.

    Attributes:
      name: a readable and unique name.
      enter: gives the problem of each contender, by the contender's name, or the
        reason why it is absent; and `check(problem, runner)`, the verdict on answers.
    """

    name: str
    enter: Callable[[], tuple[dict[str, tuple[Any, Contender] | str], Callable]]


def rows() -> list[Row]:
    """All rows: cells, programs of other people, loops that are parallel over time."""
    return [*(_cell(*one) for one in _cells()), *_programs(), *_loops()]


def _cells():
    """Cases, and how they are run besides `lax.scan` and what the planner chooses.

    Where it chooses kernels, XLA's loops run, too; and kernels where it does not.
    """
    small = {"dtype": "bfloat16", "throughout": True}
    for dtype in ("bfloat16", "float32"):
        yield Case("lstm", 1024, 2, 256, 128, dtype), (LOOPS, GRAPH)
        yield Case("gru", 1024, 2, 256, 128, dtype), (LOOPS, GRAPH)
    yield Case("lstm", 512, 64, 64, 64, **small), (LOOPS, GRAPH)
    yield Case("ln_lstm", 512, 64, 64, 64, **small), (LOOPS, GRAPH)
    yield Case("lstm", 256, 64, 128, 128, "bfloat16"), (LOOPS, GRAPH)
    yield Case("gru", 256, 1024, 128, 128, "bfloat16"), (LOOPS, GRAPH)
    yield Case("lstm", 30, 32, 512, 512, "bfloat16"), (LOOPS, GRAPH)
    yield Case("lstm", 256, 64, 512, 512, "bfloat16"), (LOOPS, GRAPH)
    # fastrnns of PyTorch, and the same with layer norm.
    yield Case("lstm", 100, 64, 512, 512), (LOOPS, GRAPH)
    yield Case("ln_lstm", 100, 64, 512, 512), (LOOPS, GRAPH)
    yield Case("lstm", 256, 64, 1024, 1024, "bfloat16"), (LOOPS, GRAPH)
    yield Case("gru", 1024, 16, 768, 768, "bfloat16"), (LOOPS, GRAPH)


def _programs():
    ways = {
        "LSTM with 4 heads": (LOOPS,),
        "bidirectional LSTM, Flax Linen": (LOOPS,),
        "actor and critic with resets, Flax Linen": (LOOPS,),
        "cells.slstm": (KERNEL,),
        "cells.indrnn": (LOOPS, KERNEL),
        # Its kernels have not run on a GPU.
        "chunks of a gated delta rule": (KERNEL,),
    }
    for name, chosen in ways.items():
        yield Row(name, functools.partial(_program, name, chosen))


def _loops():
    affine = LOOPS, HAND, KERNEL
    sizes = {name: parallel.BOUND for name in AFFINE}
    for name, (T, B, D) in (sizes | {"mLSTM": MEMORY}).items():
        ways = (LOOPS, KERNEL) if name in loops.MEMORIES else affine
        title = f"{name}, T={T} B={B} D={D}"
        yield Row(title, functools.partial(_loop, name, (T, B, D), ways))


def _cell(case: Case, ways) -> Row:
    return Row(case.name, functools.partial(_of_case, case, ways))


def _of_case(case, ways):
    found: dict = {}
    for name in (SCAN, OURS, *ways):
        known = CELLS[name]
        if name == GRAPH and case.cell not in ("lstm", "gru"):
            known = known.replace("torch", "torch_lstm")
        try:
            peer = find(known)
        except Absent as reason:
            found[name] = str(reason)
            continue
        found[name] = peer.supports(case) or (problem(peer.computes(case)), peer)

    return found, lambda problem, runner: gate.check(runner, problem.case, TOLERANCE)


def _program(name, ways):
    return _in_ways(programs.find(name), ways)


def _loop(name, sizes, ways):
    loop = parallel.made(name, *sizes, normal)
    by_hand = HAND in ways and loop.hand is not None
    hand = {HAND: loops.function(loop, HAND)} if by_hand else {}
    return _in_ways(loop.program, [way for way in ways if way != HAND], hand)


def _in_ways(program, ways, more=None):
    """A program as it is, as planned, by some executors, and in other ways."""
    accelerate, apply = scanrnn.accelerate, program.apply
    applied = {SCAN: apply, OURS: accelerate(apply), **(more or {})}
    for way in ways:
        applied[way] = accelerate(apply, plan=scanrnn.Options(implementation=way))
    found = {name: (program, contender(name, f)) for name, f in applied.items()}
    return found, Checked(TOLERANCE).check
