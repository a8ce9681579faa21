"""The number of iterations of a loop in a compiled program.

The compiler for an H100 writes `known_trip_count` beside the loop. The compiler for a
TPU does not: there the bound is read from the loop's condition, `counter < constant`.
"""

import re

from benchmarks.compiled import hlo
from benchmarks.compiled.hlo import Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INDEX = re.compile(r"\bindex=(\d+)")


def trips(module: Module, loop: Instruction, around: list[Instruction]) -> int | None:
    """The number of iterations of a loop among the instructions `around`.

    It is None if the number is not known before the loop runs.
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
    # In a nested loop the first value may be out of sight: JAX counts from zero.
    return bound - (_first(counter, loop, around) or 0)


def _named(name, instructions):
    return next((i for i in instructions if i.name == name), None)


def _element(name, instructions):
    """The index of this value in the loop's tuple."""
    found = _named(name, instructions)
    if found is None or found.opcode != "get-tuple-element":
        return None
    index = _INDEX.search(found.attributes)
    return int(index[1]) if index else None


def _number(name, instructions, loop, around):
    """A constant of the condition, or a constant that the loop carries along."""
    found = _named(name, instructions)
    if found is not None and found.opcode == "get-tuple-element":
        return _first(_element(name, instructions), loop, around)
    return _constant(name, instructions)


def _first(element, loop, around):
    """The first value of an element of the loop's tuple, if it is a constant."""
    start = _named(loop.operands[0], around)
    if start is None or start.opcode != "tuple":
        return None
    return _constant(start.operands[element], around)


def _constant(name, instructions):
    """The integer constant of that name, seen through copies and bitcasts."""
    found = _named(name, instructions)
    while found is not None and found.opcode in ("copy", "bitcast"):
        found = _named(found.operands[0], instructions)
    if found is None or found.opcode != "constant":
        return None
    return int(found.operands[0]) if found.operands[0].lstrip("-").isdigit() else None
