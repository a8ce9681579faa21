"""One row: the costs of a program on a machine, as plain numbers."""

import dataclasses
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.compiled import costs, hlo, thunks

# Types are cut to this many characters: those of tuples are long.
WIDTH = 72


@dataclasses.dataclass(frozen=True)
class ProgramCase:
    """A program of other people, by its name in `benchmarks.programs`."""

    program: str
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return self.program


# A contender: ours, with the loops that XLA runs.
LOOPS = "planned"


class Row(NamedTuple):
    """One program to compile.

    Attributes:
      machine: a name in `targets.ALL`.
      case: the cell with its sizes and its dtype, or a program of other people.
      mode: `train` or `forward`.
      contender: a name in `suite.CONTENDERS`, or `LOOPS`.
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
        """The row of a record."""
        fields = {name: record[name] for name in cls._fields}
        kind = ProgramCase if "program" in fields["case"] else Case
        return cls(**(fields | {"case": kind(**fields["case"])}))


def measure(row: Row, top: int = 0) -> tuple[dict, str]:
    """Compiles a row; gives its record and the text of the program.

    The record has the `top` most expensive instructions of each loop.
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
    """The starts by a GPU's host, and the kernels that run; empty if unknown."""
    if not program.thunks:
        return {}
    module = hlo.parse(program.text)
    trips = (
        1 if loop.trips is None else loop.trips for loop in costs.all_loops(module)
    )
    found = thunks.starts(thunks.parse(program.thunks), trips)
    return {"host_starts": found.host, "device_kernels": found.kernels}


def read(text: str, top: int = 0) -> dict:
    """Launches and cycles of a program and of its loops, from its text."""
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
    """Instructions of each loop's body that cost anything, the most expensive first.

    Without estimates of cycles, instructions are in the order of the schedule. With
    estimates, instructions on scalars are left out: they have none.

    Args:
      text: the text of a compiled program.
      top: the most instructions for each loop; None gives all.

    Returns:
      A list for each loop, by the name of its body; each instruction with its name,
      kind, type, cycles and path in the JAX program.
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
