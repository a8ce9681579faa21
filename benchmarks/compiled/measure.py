"""One row: what a program of a case costs on a machine, as plain numbers."""

import dataclasses
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.compiled import costs, hlo, thunks

# Types of tuples are long.
WIDTH = 72


@dataclasses.dataclass(frozen=True)
class ProgramCase:
    """A program as other people write it, by its name in `benchmarks.programs`."""

    program: str
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return self.program


class Row(NamedTuple):
    """What is compiled.

    Attributes:
      machine: a name in `targets.TARGETS`.
      case: the cell, its sizes and its dtype; or other people's program.
      mode: `train` or `forward`.
      contender: a name in `programs.CONTENDERS`.
    """

    machine: str
    case: Case | ProgramCase
    mode: str
    contender: str

    @property
    def name(self) -> str:
        return f"{self.machine}-{self.case.name}-{self.mode}-{self.contender}"

    def as_json(self) -> dict:
        return self._asdict() | {"case": dataclasses.asdict(self.case)}

    @classmethod
    def of(cls, record: dict) -> "Row":
        """The row that a record is of."""
        fields = {name: record[name] for name in cls._fields}
        kind = ProgramCase if "program" in fields["case"] else Case
        return cls(**(fields | {"case": kind(**fields["case"])}))


def measure(row: Row, top: int = 0) -> tuple[dict, str]:
    """The record of a row, with the `top` dearest instructions of each loop.

    Gives the text of the program too.
    """
    from benchmarks.compiled import programs

    program = programs.compile_(row.machine, row.case, row.mode, row.contender)
    record = row.as_json() | {
        "temp_bytes": program.temp_bytes,
        "lower_seconds": round(program.lower_seconds, 2),
        "compile_seconds": round(program.compile_seconds, 2),
        **read(program.text, top),
        **_starts(program),
    }
    return record, program.text


def _starts(program) -> dict:
    """What a GPU's host starts, and how many kernels run; nothing if unknown."""
    if not program.thunks:
        return {}
    module = hlo.parse(program.text)
    trips = (
        1 if loop.trips is None else loop.trips for loop in costs.all_loops(module)
    )
    found = thunks.starts(thunks.parse(program.thunks), trips)
    return {"host_starts": found.host, "device_kernels": found.kernels}


def read(text: str, top: int = 0) -> dict:
    """Launches and cycles of a program and of its loops."""
    module = hlo.parse(text)
    hottest = hot(text, top) if top else {}
    return {
        **costs.total(module)._asdict(),
        "kernels": costs.kernels(module),
        "loops": [
            {
                "name": loop.name,
                "depth": loop.depth,
                "trips": loop.trips,
                **loop.cost._asdict(),
                "hot": hottest.get(loop.body, []),
            }
            for loop in costs.all_loops(module)
        ],
    }


def hot(text: str, top: int | None = None) -> dict[str, list[dict]]:
    """Instructions of each loop's body that cost anything, the dearest first.

    Without estimates of cycles they stand in the order of the schedule; with them
    those on scalars, which have none, are left out.

    Args:
      text: of a compiled program.
      top: at most so many of a loop.

    Returns:
      By the name of the body: name, kind, type, cycles and JAX path of each.
    """
    module = hlo.parse(text)
    has_cycles = costs.total(module).cycles > 0
    found = {}
    for loop in costs.all_loops(module):
        lines = []
        for instruction in module.computations[loop.body]:
            cost = costs.own(instruction)
            if cost.cycles or cost.unpriced or (cost.launches and not has_cycles):
                lines.append(_line(instruction, cost))
        found[loop.body] = sorted(lines, key=lambda line: -line["cycles"])[:top]
    return found


def _line(instruction, cost):
    return {
        "name": instruction.name,
        "kind": costs.kind(instruction),
        "type": instruction.type[:WIDTH],
        "cycles": cost.cycles,
        "path": instruction.op_name.rpartition("while/body/")[2],
    }
