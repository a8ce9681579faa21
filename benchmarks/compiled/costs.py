"""Launches and cycles of a compiled program, and of each of its loops.

A launch is an instruction that the runtime has to start on the device: a fusion, a
library call, a copy. Those which only name memory start nothing. A loop costs its
trips times its body; of a conditional the dearest branch counts; an asynchronous
operation counts once, where it starts.
"""

import itertools
import re
from typing import NamedTuple

from benchmarks.compiled import loops
from benchmarks.compiled.hlo import Instruction, Module

# Instructions that name memory, or wait for something that was started before.
NOTHING = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier domain"
    " add-dependency partition-id replica-id get-dimension-size".split()
)
# Custom calls that only name memory, on a TPU.
NAMING = ("AllocateBuffer", "ConcatBitcast", "Sharding", "annotate_device_placement")
# A kernel of somebody's own on a TPU: the compiler does not estimate it.
KERNEL = "tpu_custom_call"

_ARRAY = re.compile(r"\[\d")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_KIND = re.compile(r"\bkind=k(\w+)")
_CUSTOM_KIND = re.compile(r'"(?:kind|name)":"(_*[a-z]\w*)"')


class Cost(NamedTuple):
    """What something takes, with everything it calls.

    Attributes:
      launches: kernels, library calls and copies that are started.
      cycles: by the estimate of a TPU's compiler; 0 where it gives none.
      unpriced: launches on arrays that have no estimate, other than copies that run
        beside something else.
    """

    launches: int = 0
    cycles: int = 0
    unpriced: int = 0

    def __add__(self, other):
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, n: int) -> "Cost":
        return Cost(*(n * a for a in self))


class Loop(NamedTuple):
    """A while loop.

    Attributes:
      name: of its instruction.
      depth: 0 in the entry computation, 1 in the body of such a loop.
      trips: its iterations; None if nobody knows before it runs.
      cost: of one iteration.
      body: the name of the computation it repeats.
      op_name: the path in the JAX program.
    """

    name: str
    depth: int
    trips: int | None
    cost: Cost
    body: str
    op_name: str

    @property
    def total(self) -> Cost:
        """An unknown number of trips counts as one."""
        return self.cost.times(1 if self.trips is None else self.trips)


def total(module: Module) -> Cost:
    """The whole program."""
    return _computation(module, module.entry)


def all_loops(module: Module) -> list[Loop]:
    """Every loop, in the order they run, those within one right after it."""
    return list(_loops(module, module.entry, 0))


def own(instruction: Instruction) -> Cost:
    """An instruction by itself, without the computations it calls."""
    opcode = instruction.opcode
    if opcode in NOTHING or opcode.endswith(("-done", "-update")):
        return Cost()
    if opcode in ("while", "conditional", "call", "async-start"):
        return Cost()
    if opcode == "custom-call" and target(instruction) in NAMING:
        return Cost()
    if cycles := _CYCLES.search(instruction.attributes):
        return Cost(1, int(cycles[1]))
    beside = opcode.endswith("-start")
    return Cost(1, 0, int(not beside and bool(_ARRAY.search(instruction.type))))


def kernels(module: Module) -> int:
    """How many calls of somebody's own kernels stand in the program."""
    instructions = itertools.chain(*module.computations.values())
    return sum(target(i) == KERNEL for i in instructions)


def target(instruction: Instruction) -> str:
    """What a custom call calls."""
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def kind(instruction: Instruction) -> str:
    """The opcode, and which sort of fusion or whose code a call is."""
    if instruction.opcode == "custom-call":
        return f"custom-call {target(instruction)}"
    if instruction.opcode != "fusion":
        return instruction.opcode
    found = _KIND.search(instruction.attributes)
    words = [f"fusion {found[1]}" if found else "fusion"]
    if words == ["fusion Custom"]:
        words += _CUSTOM_KIND.findall(instruction.attributes)
    return " ".join(words)


def _computation(module, name) -> Cost:
    cost = Cost()
    for instruction in module.computations[name]:
        cost += _with_callees(module, instruction, module.computations[name])
    return cost


def _with_callees(module, instruction, around) -> Cost:
    cost = own(instruction)
    if instruction.opcode == "while":
        return cost + _loop(module, instruction, around, 0).total
    if instruction.opcode == "conditional":
        return cost + _computation(module, _dearest(module, instruction))
    for callee in _callees(instruction):
        cost += _computation(module, callee)
    return cost


def _loop(module, instruction, around, depth) -> Loop:
    body, condition = instruction.called["body"], instruction.called["condition"]
    trips = loops.trips(module, instruction, around)
    cost = _computation(module, body)
    if trips is None:
        # The condition is asked on the device, each time.
        cost += _computation(module, condition)
    return Loop(instruction.name, depth, trips, cost, body, instruction.op_name)


def _loops(module, name, depth):
    around = module.computations[name]
    for instruction in around:
        if instruction.opcode == "while":
            yield _loop(module, instruction, around, depth)
            yield from _loops(module, instruction.called["body"], depth + 1)
        elif instruction.opcode == "conditional":
            yield from _loops(module, _dearest(module, instruction), depth)
        else:
            for callee in _callees(instruction):
                yield from _loops(module, callee, depth)


def _dearest(module, conditional):
    """The branch that costs most: by cycles where there are any."""

    def price(branch):
        cost = _computation(module, branch)
        return cost.cycles, cost.launches

    return max(conditional.branches, key=price)


def _callees(instruction):
    """What runs as instructions of its own; a fusion's inside does not."""
    if instruction.opcode == "call":
        return [instruction.called["to_apply"]]
    if instruction.opcode == "async-start":
        return [instruction.called["calls"]]
    return []
