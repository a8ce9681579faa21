"""The contenders, one file per peer; a peer that is not installed is absent."""

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
    """A contender by name; `scanrnn:split+hoist` names the passes of the planner.

    Raises:
      ValueError: if the name is unknown or its library is not installed.
    """
    found, absent = load()
    if name.startswith("scanrnn:"):
        from benchmarks.contenders import scanrnn

        return scanrnn.parse(name.removeprefix("scanrnn:"))
    if name.startswith("accelerate:"):
        from benchmarks.contenders import accelerate

        return accelerate.accelerated(name.removeprefix("accelerate:"))
    if name in found:
        return found[name]
    if name in absent:
        raise ValueError(f"contender {name!r}: {absent[name]}")
    raise ValueError(f"unknown contender {name!r}: expected one of {sorted(found)}")
