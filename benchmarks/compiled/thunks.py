"""What the host starts on a GPU, read from the thunks that XLA writes for a program.

A thunk is one thing that XLA's runtime executes. A CUDA graph (`kCommandBuffer`) is one
start by the host, however many kernels it holds. HLO shows only the kernels.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_THUNK = re.compile(r"^(?P<indent> *)\d+: (?P<kind>k\w+)")
_PART = re.compile(r"^ *(?P<part>condition|body):")
_STEP = 4  # spaces of indentation for each level

# Estimates for an H100, in microseconds: a start by the host, and a kernel in a graph.
HOST, NODE = 3.0, 1.3


class Starts(NamedTuple):
    """The starts of a program.

    Attributes:
      host: starts by the host: CUDA graphs, and everything outside of graphs.
      kernels: kernels, library calls and copies on the device, also those in graphs.
    """

    host: float = 0
    kernels: float = 0

    @property
    def microseconds(self) -> float:
        """An estimate of the time of all starts, without the time of computing."""
        return HOST * self.host + NODE * self.kernels

    def plus(self, other: "Starts", times: int = 1) -> "Starts":
        """The sum of these starts and `times` times the others."""
        return Starts(
            self.host + times * other.host, self.kernels + times * other.kernels
        )


class Thunk(NamedTuple):
    """One thunk: its kind, and the thunks in it by the part of a loop."""

    kind: str
    parts: dict[str, list["Thunk"]]

    @property
    def inside(self) -> list["Thunk"]:
        return [thunk for part in self.parts.values() for thunk in part]


def parse(text: str) -> list[Thunk]:
    """The outermost thunks of XLA's `thunk_sequence` text."""
    root = Thunk("", {})
    open_, parts = [root], {}
    for line in text.splitlines():
        if heading := _PART.match(line):
            # The part is of the last loop that was opened and has no such part yet.
            part = heading["part"]
            loop = next(
                t for t in reversed(open_) if t.kind == "kWhile" and part not in t.parts
            )
            loop.parts[part] = []
            parts[id(loop)] = part
        elif found := _THUNK.match(line):
            depth = len(found["indent"]) // _STEP
            del open_[depth + 1 :]
            around = open_[-1]
            thunk = Thunk(found["kind"], {})
            around.parts.setdefault(parts.get(id(around), ""), []).append(thunk)
            open_.append(thunk)
    return root.inside


def starts(thunks: list[Thunk], trips: Iterator[int]) -> Starts:
    """All starts of these thunks; `trips` are the trips of all loops in their order.

    A loop outside of graphs also computes its condition, once more than its body, and
    the host reads the result.
    """
    found = Starts()
    for thunk in thunks:
        if thunk.kind == "kCommandBuffer":
            inside = starts(thunk.inside, trips)
            found = found.plus(Starts(1, inside.kernels))
        elif thunk.kind == "kWhile":
            count = next(trips)
            condition = starts(thunk.parts.get("condition", []), trips)
            found = found.plus(condition.plus(Starts(1, 1)), count + 1)
            found = found.plus(starts(thunk.parts.get("body", []), trips), count)
        elif thunk.inside:
            found = found.plus(starts(thunk.inside, trips))
        else:
            found = found.plus(Starts(1, 1))
    return found
