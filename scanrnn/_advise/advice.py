"""Advice on sizes: what a layer costs, what bounds it, and what would help most."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn._advise.layers import Sizes, plan_of
from scanrnn.cells import Cell
from scanrnn.machines import Machine, machine_named, machine_of
from scanrnn.planner import Plan
from scanrnn.planner.costs import Cost, up


class Change(NamedTuple):
    """Something that could be done.

    Attributes:
        what: in words.
        gain: how many times as much work is done in the same time.
    """

    what: str
    gain: float


@dataclasses.dataclass(frozen=True)
class Advice:
    """What `advise` found; `print` it.

    Attributes:
        machine: the machine that it is for.
        sizes: of the layer.
        dtype: of the operands of its matrix products.
        plan: how the layer will run.
        cost: the estimate for a training step.
        misaligned: a message for each size that does not fit the machine.
        changes: what would help, the best first.
    """

    machine: Machine
    sizes: Sizes
    dtype: str
    plan: Plan
    cost: Cost
    misaligned: tuple[str, ...]
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        """The advice in words."""
        cost, sizes = self.cost, self.sizes
        intensity = cost.flops / cost.moved if cost.moved else 0.0
        peak = self.machine.peaks.get(self.dtype, self.machine.peaks["float32"])
        lines = [
            f"Advice for {self.dtype} on {self.machine.kind}: "
            + ", ".join(f"{k}={v}" for k, v in sizes._asdict().items()),
            f"A training step: {cost.flops / 1e9:.3g} GFLOP in products, "
            f"{cost.moved / 1e6:.3g} MB moved: {intensity:.3g} FLOP per byte, where "
            f"the machine has {peak / self.machine.bandwidth:.3g}.",
            f"By estimate {1e3 * cost.seconds:.3g} ms: arithmetic "
            f"{1e3 * cost.arithmetic:.3g}, memory {1e3 * cost.memory:.3g}, dispatch "
            f"{1e3 * cost.dispatch:.3g}. It is bound by {cost.bound}.",
        ]
        lines += [f"Sizes: {text}." for text in self.misaligned or ("all fit",)]
        for place, change in enumerate(self.changes):
            word = "What would help most" if place == 0 else "Then"
            lines.append(f"{word}: {change.what}: {change.gain:.2f} times the work.")
        if not self.changes:
            lines.append("No change that was looked at helps.")
        return "\n".join(lines)


def advise(
    cell: Cell,
    *,
    steps: int,
    batch: int,
    in_features: int,
    hidden_features: int,
    dtype: Any = jnp.float32,
    machine: Machine | str | None = None,
) -> Advice:
    """Say what a recurrent layer costs, what limits its speed, and what would help.

    The numbers come from the simple model of the machine that also chooses executors.
    They are good for comparing sizes, not for predicting times. Nothing is run.

    Args:
        cell: of the layer.
        steps: T.
        batch: B.
        in_features: D.
        hidden_features: H.
        dtype: of the operands of products.
        machine: name or `Machine`; None for the one that is there.

    Returns:
        The advice.

    Raises:
        TypeError: if `cell` is no cell.
        ValueError: if a size is less than one, or the machine is unknown.

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
        Sizes: B=20 is no multiple of 8 ...
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
    if min(sizes) < 1:
        raise ValueError(f"advise: the sizes are {sizes}, want at least 1 for each")
    chosen = machine_of() if machine is None else machine_named(machine)
    name = str(jnp.dtype(dtype))
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise TypeError("dtype: JAX has no float64; set JAX_ENABLE_X64=1")
    try:
        plan = plan_of(cell, sizes, name, chosen)
    except OverflowError:
        raise ValueError(
            f"advise: the sizes are {sizes}, too large: JAX counts an axis in 32 bits"
        ) from None
    cost = plan.cost
    found = []
    for what, other, other_name in _alternatives(sizes, name, chosen):
        try:
            other_plan = plan_of(cell, other, other_name, chosen)
        except (ValueError, OverflowError):
            continue  # the cell cannot have these sizes, as one with a residual
        work = _work(other) / _work(sizes)
        found.append(Change(what, work * cost.seconds / other_plan.cost.seconds))
    changes = [change for change in found if change.gain > 1.05]
    changes.sort(key=lambda change: -change.gain)
    misaligned = tuple(_misaligned(sizes, name, chosen))
    return Advice(chosen, sizes, name, plan, cost, misaligned, tuple(changes))


def _work(sizes):
    """The multiplications of a layer, up to a factor."""
    return sizes.T * sizes.B * sizes.H * (sizes.D + sizes.H)


def _fits(dtype, machine):
    """The multiples that batch and features should be of."""
    if machine.platform == "tpu":
        return 8, 128
    if machine.platform in ("cuda", "rocm"):
        return (8, 8) if jnp.dtype(dtype).itemsize < 4 else (4, 4)
    return 1, 16


def _misaligned(sizes, dtype, machine) -> Iterator[str]:
    """What is wrong with sizes, in words."""
    batch, features = _fits(dtype, machine)
    for name, multiple in (("B", batch), ("D", features), ("H", features)):
        size = getattr(sizes, name)
        if size % multiple:
            yield (
                f"{name}={size} is no multiple of {multiple} ({dtype} on "
                f"{machine.kind}); the next one is {up(size, multiple)}"
            )
    if machine.platform in ("cuda", "rocm", "tpu"):
        for name in ("B", "H"):
            if (size := getattr(sizes, name)) < 64:
                yield f"{name}={size} is less than 64, and leaves tiles empty"
        if sizes.B <= 128 and sizes.H <= 256:
            yield "with B up to 128 and H up to 256 the recurrence waits for memory"


def _alternatives(sizes, dtype, machine) -> Iterator[tuple[str, Sizes, str]]:
    """What could be changed, and what it would be then."""
    twice = sizes._replace(B=2 * sizes.B)
    yield f"a batch of {twice.B} in place of {sizes.B}", twice, dtype
    wide = sizes._replace(H=2 * sizes.H)
    yield f"H={wide.H} in place of {sizes.H}", wide, dtype
    if machine.pays("bfloat16") and dtype == "float32":
        yield "operands of bfloat16, with accumulation in float32", sizes, "bfloat16"
    batch, features = _fits(dtype, machine)
    fitting = Sizes(
        sizes.T,
        up(sizes.B, batch),
        up(sizes.D, features),
        up(sizes.H, features),
    )
    if fitting != sizes:
        named = zip(Sizes._fields, fitting, sizes, strict=True)
        text = ", ".join(f"{name}={new}" for name, new, old in named if new != old)
        yield f"sizes that fit, {text}", fitting, dtype
