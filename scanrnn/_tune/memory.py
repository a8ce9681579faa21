"""Keep the results of tuning on disk: one small file for each key."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer

from scanrnn._files import replacing
from scanrnn._warn import warn
from scanrnn.machines import Machine, _processor
from scanrnn.planner import Options, Plan, Traced

FORMAT = 1
# Parts of the package that decide what a plan runs.
_PARTS = ("_tune", "executors", "machines", "planner")
_unwritable: set[Path] = set()


def key_of(traced: Traced, asked: Options, plan: Plan, goal: str) -> dict | None:
    """All that the choice depends on; None if the text of the step is not stable.

    `plan` has other options than those `asked` for if the estimate prefers `lax.scan`
    or a kernel.
    """
    step = str(traced.source)
    if " at 0x" in step:
        return None
    groups = (traced.weights, traced.init, traced.xs)
    device = jax.local_devices()[0]
    return {
        "step": step,
        "arrays": [[jax.typeof(v).str_short() for v in group] for group in groups],
        "placed": [[_placed(v) for v in group] for group in groups],
        "length": plan.length,
        "reverse": plan.reverse,
        "unroll": plan.unroll,
        "asked": _fields(asked),
        "options": _fields(plan.options),
        "machine": _described(plan.machine),
        "objective": goal,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        # The package itself cannot be imported from here; by now it is loaded.
        "scanrnn": sys.modules["scanrnn"].__version__,
        "source": _source(),
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processor": _processor.model(),
        "cores": _processor.cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _fields(options: Options) -> dict:
    """Options as plain values, without the machine, which the key describes itself."""
    names = [field.name for field in dataclasses.fields(options)]
    return {name: getattr(options, name) for name in names if name != "machine"}


def _described(machine: Machine) -> dict:
    """A machine as plain values: those with equal names may differ."""
    fields = {f.name: getattr(machine, f.name) for f in dataclasses.fields(machine)}
    return fields | {"peaks": dict(machine.peaks), "units": sorted(machine.units)}


def _placed(value: Any) -> list | None:
    """How many devices hold an array, and how; None for one of the usual kind.

    What is no array yet is measured on such a device.
    """
    if isinstance(value, Tracer) or not isinstance(value, jax.Array):
        return None
    sharding = value.sharding
    kinds = sorted({device.device_kind for device in sharding.device_set})
    if sharding.num_devices == 1 and kinds == [jax.local_devices()[0].device_kind]:
        return None
    spec, part = getattr(sharding, "spec", None), sharding.shard_shape(value.shape)
    return [sharding.num_devices, kinds, str(spec), list(part)]


@functools.cache
def _source() -> str:
    """A digest of the code that plans and runs: in a clone, the version stays."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(f for part in _PARTS for f in (package / part).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def path_of(key: dict | None) -> Path | None:
    """The path of a key's file, in `$SCANRNN_CACHE` or the user's cache folder.

    None if the key is None.
    """
    if key is None:
        return None
    folder = os.environ.get("SCANRNN_CACHE")
    if not folder:
        user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(user, "scanrnn")
    text = json.dumps(key, sort_keys=True)
    return Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def recalled(path: Path | None, key, known: dict[str, Options]):
    """The label of the choice and the seconds in a file, or None.

    None if there is no file, or if the file cannot be used.

    Warns:
      UserWarning: if there is a file but it cannot be used, for example because it is
        for another key.
    """
    if path is None:
        return None
    try:
        return _read(json.loads(path.read_text("utf-8")), key, known)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        warn(
            f"plan: tuning again, since {path} cannot be used: {error}",
        )
        return None


def _read(content: Any, key: dict, known: dict[str, Options]):
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not an object of format {FORMAT}")
    if content.get("key") != key:
        raise ValueError("it was written for another step or machine")
    options, seconds = content.get("options"), content.get("seconds")
    if not isinstance(options, dict) or not isinstance(seconds, dict):
        raise ValueError("options and seconds must be objects")
    for label, value in seconds.items():
        number = isinstance(value, float) and math.isfinite(value) and value >= 0
        if label not in known or not number:
            raise ValueError(f"{label!r}: {value!r} is not a time of a candidate")
    chosen = Options(**options)
    same = [n for n, o in known.items() if _fields(o) == _fields(chosen)]
    labels = [label for label in same if label in seconds]
    if not labels:
        raise ValueError("its options are not those of a candidate with a time")
    return labels[0], seconds


def remember(path: Path | None, key, options: Options, seconds) -> bool:
    """Write the choice to a file, completely or not at all.

    Returns:
      Whether it was written.

    Warns:
      UserWarning: once for each folder that cannot be written.
    """
    if path is None:
        return False
    content = {
        "format": FORMAT,
        "key": key,
        "options": _fields(options),
        "seconds": seconds,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(json.dumps(content, indent=1), "utf-8")
    except OSError as error:
        if path.parent not in _unwritable:
            _unwritable.add(path.parent)
            warn(
                f"plan: what tuning found cannot be remembered in {path.parent}: "
                f"{error} (set SCANRNN_CACHE to a folder that can be written)",
            )
        return False
    return True
