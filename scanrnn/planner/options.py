"""Which passes run, and what they keep: what a user can ask of a plan."""

from __future__ import annotations

import dataclasses

from scanrnn.machines import Machine, machine_named
from scanrnn.planner.saved import POLICIES


@dataclasses.dataclass(frozen=True)
class Options:
    """Which passes run. Equal options on the same step give the same plan.

    Attributes:
      split: split contractions of a `concatenate` into one for each part.
      hoist: run time-parallel contractions before the loop.
      merge: join contractions that share their recurrent operand.
      layout: slice each gate by itself, where XLA is faster so (needs `defer`).
      sink: run readout contractions after the loop.
      defer: compute weight gradients after the reverse loop.
      implementation: the name of the executor: "planned", "associative" (parallel over
        time), "pallas_tpu" (one kernel for a loop), or "scan" for `lax.scan` itself.
        None is the cheapest by estimate of those that may be chosen. A step that is too
        small to gain anything is left to `lax.scan`.
      residuals: what the forward loop keeps for the reverse one: "minimal" (carries,
        and results of contractions), "recompute" (carries; contractions are computed
        again, for all steps of a chunk at once), "chunked" (carries at the start of
        each chunk) or "everything". None is "chunked" for a step that is wholly under
        `jax.checkpoint`, "minimal" on a CPU, and "recompute" elsewhere if it pays.
      chunk: how many steps are computed at a time: before the loop, in it and after it.
        None is about sqrt(T) with "chunked", what suits the machine with "recompute",
        and else all steps, unless what is computed before or after the loop takes more
        than 256 MB. Without a gradient a CPU takes fewer: see `Plan.value_chunk`.
      machine: the machine to plan for, a `scanrnn.Machine` or a name such as "h100";
        None is the one that the arrays are on.

    Raises:
      ValueError: for an unknown residual policy.
      TypeError: for a switch that is not a bool.

    Example:
      >>> Options(residuals="recompute").residuals
      'recompute'
    """

    split: bool = True
    hoist: bool = True
    merge: bool = True
    layout: bool = True
    sink: bool = True
    defer: bool = True
    implementation: str | None = None
    residuals: str | None = None
    chunk: int | None = None
    machine: Machine | str | None = None

    def __post_init__(self):
        """Check the values at the door."""
        if self.residuals not in (None, *POLICIES):
            raise ValueError(
                f"Options: residuals must be None or one of {', '.join(POLICIES)}; "
                f"got {self.residuals!r}"
            )
        if self.chunk is not None and (
            not isinstance(self.chunk, int)
            or isinstance(self.chunk, bool)
            or self.chunk < 1
        ):
            raise ValueError(
                f"Options: chunk must be None or a number of steps; got {self.chunk!r}"
            )
        if self.machine is not None:
            machine_named(self.machine)
        for field in dataclasses.fields(self):
            if field.type != "bool":
                continue
            value = getattr(self, field.name)
            if not isinstance(value, bool):
                raise TypeError(f"Options: {field.name} must be a bool, got {value!r}")
