"""The contenders, one file per peer; a peer that is not installed is absent."""

import dataclasses
import functools
import importlib

from benchmarks.contenders._base import Contender

FILES = (
    "scanrnn",
    "lax_scan",
    "torch",
    "flax_linen",
    "flax_nnx",
    "haiku",
    "equinox",
    "keras",
)

# Files that make contenders from what follows their name and a colon.
FAMILIES = ("scanrnn", "accelerate")


@functools.cache
def load() -> tuple[dict[str, Contender], dict[str, str]]:
    """All contenders by name, and the absent files with the reason."""
    found: dict[str, Contender] = {}
    absent: dict[str, str] = {}
    for name in FILES:
        try:
            module = importlib.import_module(f"benchmarks.contenders.{name}")
        except ModuleNotFoundError as error:
            absent[name] = f"{error.name} is not installed"
        else:
            found |= {row.name: row for row in module.CONTENDERS}
    return found, absent


def find(name: str) -> Contender:
    """A contender by name.

    `scanrnn:split+hoist` names the passes of the planner, `accelerate:haiku` plans
    the scans inside another's model, and `NAME@float32` computes in that dtype
    whatever the dtype of the case.

    Raises:
      ValueError: if the name is unknown or its library is not installed.
    """
    found, absent = load()
    name, _, dtype = name.partition("@")
    kind, _, spec = name.partition(":")
    if spec:
        if kind not in FAMILIES:
            raise ValueError(f"contender {name!r}: expected one of {FAMILIES} before :")
        module = importlib.import_module(f"benchmarks.contenders.{kind}")
        contender = module.parse(spec)
    elif name in found:
        contender = found[name]
    elif name in absent:
        raise ValueError(f"contender {name!r}: {absent[name]}")
    else:
        expected = [*found, "scanrnn:PASSES", "accelerate:NAME"]
        raise ValueError(f"contender {name!r} is unknown: expected any of {expected}")
    return in_dtype(contender, dtype) if dtype else contender


def in_dtype(contender: Contender, dtype: str) -> Contender:
    """The same contender, computing every case in `dtype`."""
    return contender._replace(
        name=f"{contender.name}@{dtype}",
        computes=lambda case: dataclasses.replace(
            contender.computes(case), dtype=dtype
        ),
    )
