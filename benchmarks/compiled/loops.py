"""How often a loop of a compiled program runs.

An H100's compiler writes `known_trip_count` beside the loop. A TPU's does not: there
the bound is read from the loop's condition, `counter < constant`.
"""

import re

from benchmarks.compiled import hlo
from benchmarks.compiled.hlo import Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INDEX = re.compile(r"\bindex=(\d+)")


def trips(module: Module, loop: Instruction, around: list[Instruction]) -> int | None:
    """Iterations of a loop that stands among the instructions `around`.

    None means that they are not known before it runs.
    """
    if known := _KNOWN.search(loop.attributes):
        return int(known[1])
    condition = module.computations[loop.called["condition"]]
    test = hlo.root(condition)
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    counter = _element(test.operands[0], condition)
    bound = _number(test.operands[1], condition, loop, around)
    if counter is None or bound is None:
        return None
    # JAX counts from zero where the first value is out of sight, as in a nested loop.
    return bound - (_first(counter, loop, around) or 0)


def _named(name, instructions):
    return next((i for i in instructions if i.name == name), None)


def _element(name, instructions):
    """Which element of the loop's tuple this is."""
    found = _named(name, instructions)
    if found is None or found.opcode != "get-tuple-element":
        return None
    index = _INDEX.search(found.attributes)
    return int(index[1]) if index else None


def _number(name, instructions, loop, around):
    """A constant of the condition, or one that the loop carries along."""
    found = _named(name, instructions)
    if found is not None and found.opcode == "get-tuple-element":
        return _first(_element(name, instructions), loop, around)
    return _constant(name, instructions)


def _first(element, loop, around):
    """The value that an element of the loop's tuple begins with."""
    start = _named(loop.operands[0], around)
    if start is None or start.opcode != "tuple":
        return None
    return _constant(start.operands[element], around)


def _constant(name, instructions):
    """An integer behind copies and bitcasts."""
    found = _named(name, instructions)
    while found is not None and found.opcode in ("copy", "bitcast"):
        found = _named(found.operands[0], instructions)
    if found is None or found.opcode != "constant":
        return None
    return int(found.operands[0]) if found.operands[0].lstrip("-").isdigit() else None
