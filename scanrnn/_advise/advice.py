"""Advice on sizes: what a layer costs, what limits it, and what would help most."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from scanrnn._advise import checklist
from scanrnn._advise.kernels import kernel
from scanrnn._advise.layers import Sizes, dtype_of, plan_of
from scanrnn._scan import EXECUTORS
from scanrnn.cells import Cell
from scanrnn.cells._checks import check_size
from scanrnn.cells._precision import compute_dtype
from scanrnn.machines import Machine, machine_named, machine_of
from scanrnn.planner import Plan
from scanrnn.planner.costs import Cost

# The arguments that are `Sizes`, in the order of its fields.
_SIZES = ("steps", "batch", "in_features", "hidden_features")


class Change(NamedTuple):
    """A change of sizes or dtype that would help.

    Attributes:
        what: the change in words.
        gain: how many times as much work would be done in the same time.
    """

    what: str
    gain: float


@dataclasses.dataclass(frozen=True)
class Advice:
    """What `advise` found; `print` it.

    Attributes:
        machine: the machine that the advice is for.
        sizes: the sizes of the layer.
        dtype: the dtype of the operands of its matrix products.
        plan: how the layer will run.
        cost: the estimated cost of a training step.
        misaligned: a message for each size that does not fit the machine.
        changes: the changes that would help, the best one first.
        persistent: whether cuDNN's persistent mode takes such sizes, and if not, why;
            "" on machines without cuDNN. That mode is for cuDNN's own layers, not for
            loops of JAX.
        kernel: whether our kernel for a whole loop takes such sizes, the largest power
            of two that H may be, where the kernel keeps the weights, and whether it
            runs by estimate or only if you ask for it; "" on machines without such
            kernels.
    """

    machine: Machine
    sizes: Sizes
    dtype: str
    plan: Plan
    cost: Cost
    misaligned: tuple[str, ...]
    changes: tuple[Change, ...]
    persistent: str = ""
    kernel: str = ""

    def __str__(self) -> str:
        """The advice in words."""
        cost, sizes = self.cost, self.sizes
        intensity = cost.flops / cost.moved if cost.moved else 0.0
        peak = self.machine.peaks.get(self.dtype, self.machine.peaks["float32"])
        lines = [
            f"Advice for {self.dtype} on {self.machine.kind}: {_told(sizes)}",
            f"A training step: {cost.flops / 1e9:.3g} GFLOP in products, "
            f"{cost.moved / 1e6:.3g} MB moved: {intensity:.3g} FLOP per byte, where "
            f"the machine has {peak / self.machine.bandwidth:.3g}.",
            f"By estimate {1e3 * cost.seconds:.3g} ms: arithmetic "
            f"{1e3 * cost.arithmetic:.3g}, memory {1e3 * cost.memory:.3g}, dispatch "
            f"{1e3 * cost.dispatch:.3g}. It is bound by {cost.bound}.",
        ]
        lines += [f"Sizes: {text}." for text in self.misaligned or ("all fit",)]
        if self.persistent:
            lines.append(
                f"cuDNN's persistent mode, for its own layers: {self.persistent}."
            )
        if self.kernel:
            lines.append(f"One kernel for the whole loop, by {self.kernel}.")
        for place, change in enumerate(self.changes):
            word = "What would help most" if place == 0 else "Then"
            lines.append(
                f"{word}: {change.what}: {change.gain:.2f} times the work per second."
            )
        if not self.changes:
            lines.append("None of the changes that were compared helps.")
        return "\n".join(lines)


def advise(
    cell: Cell,
    *,
    steps: int,
    batch: int,
    in_features: int,
    hidden_features: int,
    dtype: Any = None,
    machine: Machine | str | None = None,
) -> Advice:
    """Say what a recurrent layer costs, what limits its speed, and what would help.

    The numbers come from the simple model of the machine that also chooses executors.
    Use them to compare sizes, not to predict times. Nothing is run.

    Args:
        cell: the cell of the layer.
        steps: T, the number of time steps.
        batch: B, the batch size.
        in_features: D, the number of input features.
        hidden_features: H, the number of features of the carry.
        dtype: the dtype of the operands of products; None for that of the cell.
        machine: a `Machine` or its name; None for the one on which JAX computes.

    Returns:
        The advice; `print` it.

    Raises:
        TypeError: if `cell` is not a cell, if `machine` is neither a `Machine` nor a
            name, if a size is not an int, or if `dtype` is not a floating-point dtype
            of 16 bits or more, or float64 without `JAX_ENABLE_X64=1`.
        ValueError: if a size is less than one or too large for JAX, or if the machine
            is unknown.

    Example:
        >>> import scanrnn
        >>> advice = scanrnn.advise(
        ...     scanrnn.cells.lstm(), steps=100, batch=20, in_features=500,
        ...     hidden_features=500, dtype="bfloat16", machine="h100",
        ... )
        >>> advice.cost.bound
        'dispatch'
        >>> print(advice)  # doctest: +ELLIPSIS
        Advice for bfloat16 on h100: T=100, B=20, D=500, H=500
        A training step: ... GFLOP in products, ... FLOP per byte, ...
        By estimate ... ms: ... It is bound by dispatch.
        Sizes: B=20 is not a multiple of 8 ...
        ...
        What would help most: ...

    Reference:
        NVIDIA, "Optimizing Recurrent Layers User's Guide", whose checklist this is.
    """
    if not isinstance(cell, Cell):
        raise TypeError(
            f"advise: cell must be a scanrnn.cells.Cell, got {type(cell).__name__}"
        )
    sizes = Sizes(steps, batch, in_features, hidden_features)
    for given, size in zip(_SIZES, sizes, strict=True):
        check_size("advise", given, size)
    chosen = machine_of() if machine is None else machine_named(machine)
    name = dtype_of(cell) if dtype is None else str(compute_dtype(dtype))
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise TypeError("dtype: float64 is switched off in JAX; set JAX_ENABLE_X64=1")
    try:
        plan = plan_of(cell, sizes, name, chosen)
    except OverflowError:
        raise ValueError(
            f"advise: {_told(sizes)} is too large: JAX counts an axis in 32 bits"
        ) from None
    # Products outside of a loop are XLA's, whoever runs the loop.
    rules = EXECUTORS["planned"].rules(chosen)
    changes = [c for c in _changes(cell, sizes, name, plan, rules) if c.gain > 1.05]
    changes.sort(key=lambda change: -change.gain)
    return Advice(
        *(chosen, sizes, name, plan, plan.cost),
        misaligned=tuple(checklist.misaligned(sizes, name, chosen, rules)),
        changes=tuple(changes),
        persistent=checklist.persistent(sizes, name, chosen, rules),
        kernel=kernel(cell, sizes, name, chosen),
    )


def _told(sizes):
    return ", ".join(f"{name}={size}" for name, size in sizes._asdict().items())


def _changes(cell, sizes, dtype, plan, rules) -> Iterator[Change]:
    """Every alternative as a `Change`, with its gain."""
    # The backward pass has two products for each one of the forward pass.
    step = plan.cost.flops / (3 * sizes.T)
    aside = plan.rules.runs_side_by_side(plan.machine, step, dtype)
    where = plan.machine, rules
    for other in checklist.alternatives(sizes, dtype, *where, aside):
        try:
            cost = plan_of(cell, other.sizes, other.dtype, plan.machine).cost
        except (ValueError, OverflowError):
            continue  # the cell cannot have these sizes, if it has a residual, say
        # Layers that run side by side share the launches of kernels.
        seconds = other.layers * (cost.arithmetic + cost.memory) + cost.dispatch
        work = other.layers * _work(other.sizes) / _work(sizes)
        yield Change(other.what, work * plan.cost.seconds / seconds)


def _work(sizes):
    """The multiplications of a layer, up to a constant factor."""
    return sizes.T * sizes.B * sizes.H * (sizes.D + sizes.H)
