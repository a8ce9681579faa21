"""The contenders, one file per library; a library that is not installed is absent."""

import dataclasses
import importlib

from benchmarks.contenders._base import Contender

# The file that holds each contender. A file is imported only when it is asked for.
FILES = {
    "scanrnn": "scanrnn",
    "lax_scan": "lax_scan",
    "torch": "torch",
    "torch_loop": "torch",
    "torch_lstm": "torch",
    "torch_graph": "torch",
    "torch_lstm_graph": "torch",
    "torch_eager": "torch_steps",
    "torch_compile": "torch_steps",
    "torch_script": "torch_steps",
    "torch_scan": "torch_steps",
    "numba_loop": "numba_loop",
    "flax_linen": "flax_linen",
    "flax_nnx": "flax_nnx",
    "haiku": "haiku",
    "equinox": "equinox",
    "keras": "keras",
}

# Files whose contenders have options, written after the name and a colon.
FAMILIES = ("scanrnn", "accelerate", "commit")


class Absent(ValueError):
    """The library of a contender is not installed."""


def find(name: str) -> Contender:
    """A contender by name.

    `scanrnn:split+hoist` runs these passes of the planner alone, `accelerate:haiku`
    plans the scans inside the model of another library, `commit:293fdc4` is the package
    as it was at that commit, and `NAME@float32` computes in float32, whatever the dtype
    of the case is.

    Raises:
      ValueError: if the name is unknown.
      Absent: if its library is not installed.
    """
    name, _, dtype = name.partition("@")
    family, colon, spec = name.partition(":")
    if colon and family in FAMILIES:
        contender = _module(family).parse(spec)
    elif name in FILES:
        rows = {row.name: row for row in _module(FILES[name]).CONTENDERS}
        contender = rows[name]
    else:
        expected = [*FILES, "scanrnn:PASSES", "accelerate:NAME", "commit:HASH"]
        raise ValueError(f"contender {name!r} is unknown: expected any of {expected}")
    return in_dtype(contender, dtype) if dtype else contender


def in_dtype(contender: Contender, dtype: str) -> Contender:
    """The same contender, which computes every case in `dtype`."""
    return contender._replace(
        name=f"{contender.name}@{dtype}",
        runs_as=contender.runs_as or contender.name,
        computes=lambda case: dataclasses.replace(
            contender.computes(case), dtype=dtype
        ),
    )


def _module(file):
    try:
        return importlib.import_module(f"benchmarks.contenders.{file}")
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not installed") from error
