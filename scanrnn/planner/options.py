"""Options of a plan: which passes run, what is kept, and how the tuner chose them."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from scanrnn.machines import Machine, machine_named
from scanrnn.planner.derivative.saved import POLICIES

# The `implementation` that runs a step as it is: nothing is planned.
UNCHANGED = "scan"
# What a switch must be, by the type of its field.
_SWITCHES = {"bool": "a bool", "bool | None": "None or a bool"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Which passes run, and what is kept. Equal options give equal plans of a step.

    Attributes:
      split: split a matrix product with a `concatenate` into one for each part.
      hoist: run matrix products that need no carry before the loop.
      merge: join matrix products with the same operand from the carry into one.
      layout: choose how arrays of all steps lie: gates apart or packed, rows that reuse
        buffers, norms before the loop in pieces (needs `defer`).
      sink: run matrix products that only outputs need after the loop.
      defer: compute weight gradients after the reverse loop.
      features_first: whether arrays of a loop of XLA lie features first, `[H, B]`, so
        that its products are `W.T @ h.T`, and not `h @ W`. True: wherever a step can,
        else products alone; False: nowhere; None: where it was measured to be faster,
        on a CPU. It is for sizes that are numbers, and changes nothing in loops that
        run by other executors than "planned" and "fission".
      implementation: the name of the executor: "planned", "associative" (parallel over
        time), "chunkwise" (matrix memories by products of chunks), "fission" (several
        loops, one after the other), "pallas_tpu" or "pallas_gpu" (one kernel for a
        loop), or "scan" for `lax.scan` itself. None takes the executor with the lowest
        estimate, of those that may be chosen. A step that is too small to gain anything
        is left to `lax.scan`.
      residuals: what the forward loop keeps for the reverse loop: "minimal" (carries
        and matrix products; on a CPU also what takes long to compute again, such as
        noise or a sparse product, and in a step without products all that a gradient
        reads, if that is less), "recompute" (carries; matrix products are recomputed
        for all steps of a chunk at once), "chunked" (the carry at the start of each
        chunk) or "everything". None means "chunked" for a step that is wholly under
        `jax.checkpoint`, "minimal" on a CPU, and elsewhere "recompute" if it pays.
      chunk: the number of steps that are computed at a time, before, in and after the
        loop. None means about sqrt(T) with "chunked", and what suits the machine with
        "recompute". Else it means all steps, or fewer if the arrays before or after the
        loop would take more than 256 MB on a CPU, 1024 MB elsewhere. Without a gradient
        a CPU takes fewer steps: see `Plan.value_chunk`.
      machine: the machine to plan for: a `scanrnn.Machine`, or a name such as "h100".
        None means the machine that the arrays are on.

    Raises:
      ValueError: if `residuals` is not a known policy, if `chunk` is not a positive
        int, or if there is no machine of such a name.
      TypeError: if a switch is not a bool, `features_first` neither a bool nor None, or
        `machine` neither a machine nor a name.

    Example:
      >>> import scanrnn
      >>> scanrnn.Options(residuals="recompute").residuals
      'recompute'
    """

    split: bool = True
    hoist: bool = True
    merge: bool = True
    layout: bool = True
    sink: bool = True
    defer: bool = True
    features_first: bool | None = None
    implementation: str | None = None
    residuals: str | None = None
    chunk: int | None = None
    machine: Machine | str | None = None

    def __post_init__(self):
        """Check the values."""
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
            wanted = _SWITCHES.get(str(field.type))
            value = getattr(self, field.name)
            if wanted and not isinstance(value, bool | type(field.default)):
                raise TypeError(
                    f"Options: {field.name} must be {wanted}, got {value!r}"
                )


class Tuning(NamedTuple):
    """What the tuner measured: median seconds by candidate, and what it chose."""

    objective: str
    chosen: str
    seconds: dict[str, float]
    remembered: str | None
