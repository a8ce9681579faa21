"""Launches and cycles of a compiled program, and of each of its loops.

A launch is an instruction that the runtime has to start on the device: a fusion, a
library call or a copy. Instructions that only name memory start nothing. The cost of a
loop is that of its body times its trips. The cost of a conditional is that of its most
expensive branch. An asynchronous operation counts once, where it starts.
"""

import itertools
import re
from typing import NamedTuple

from benchmarks.compiled import loops
from benchmarks.compiled.hlo import Instruction, Module

# Instructions that only name memory, or wait for something that was started before.
NOTHING = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier domain"
    " add-dependency partition-id replica-id get-dimension-size".split()
)
# Custom calls that only name memory, on a TPU.
NAMING = ("AllocateBuffer", "ConcatBitcast", "Sharding", "annotate_device_placement")
# A kernel on a TPU that somebody wrote: the compiler has no estimate of its cycles.
KERNEL = "tpu_custom_call"

_ARRAY = re.compile(r"\[\d")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_KIND = re.compile(r"\bkind=k(\w+)")
_CUSTOM_KIND = re.compile(r'"(?:kind|name)":"(_*[a-z]\w*)"')


class Cost(NamedTuple):
    """The cost of an instruction or a computation, with everything it calls.

    Attributes:
      launches: the number of kernels, library calls and copies that are started.
      cycles: the estimate of a TPU's compiler; 0 where it gives none.
      unpriced: the number of launches on arrays without an estimate, except copies
        that run beside other work.
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
      name: the name of its instruction.
      depth: 0 in the entry computation, 1 in the body of such a loop, and so on.
      trips: the number of its iterations; None if it is not known before it runs.
      cost: the cost of one iteration.
      body: the name of the computation that it repeats.
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
        """The cost of all trips; an unknown number of trips counts as one."""
        return self.cost.times(1 if self.trips is None else self.trips)


def total(module: Module) -> Cost:
    """The cost of the whole program."""
    return _computation(module, module.entry)


def all_loops(module: Module) -> list[Loop]:
    """All loops in the order in which they run; inner loops follow their outer one."""
    return list(_loops(module, module.entry, 0))


def own(instruction: Instruction) -> Cost:
    """The cost of an instruction without the computations that it calls."""
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
    """The number of calls of hand-written TPU kernels in the program."""
    instructions = itertools.chain(*module.computations.values())
    return sum(target(i) == KERNEL for i in instructions)


def target(instruction: Instruction) -> str:
    """The target of a custom call; empty for other instructions."""
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def kind(instruction: Instruction) -> str:
    """The opcode, with the kind of a fusion or the target of a custom call."""
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
        # The device computes the condition in each iteration.
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
    """The branch that costs most: by cycles, then by launches."""

    def price(branch):
        cost = _computation(module, branch)
        return cost.cycles, cost.launches

    return max(conditional.branches, key=price)


def _callees(instruction):
    """The computations whose instructions run one by one; those of fusions do not."""
    if instruction.opcode == "call":
        return [instruction.called["to_apply"]]
    if instruction.opcode == "async-start":
        return [instruction.called["calls"]]
    return []
