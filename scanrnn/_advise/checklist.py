"""The checklist of NVIDIA's guide: which sizes fit, and what else to try."""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

from scanrnn._advise.layers import Sizes
from scanrnn.machines import Machine
from scanrnn.planner.integers import next_multiple
from scanrnn.planner.rules import Rules

# A message is given if more than this share of the rows or columns would be padding.
WASTE = 0.1


class Alternative(NamedTuple):
    """A layer with other sizes or another dtype, to compare with.

    Attributes:
        what: the change in words.
        sizes: the new sizes of each layer.
        dtype: the new dtype of the operands of products.
        layers: how many layers run side by side.
    """

    what: str
    sizes: Sizes
    dtype: str
    layers: int = 1


def multiples(dtype: str, rules: Rules) -> tuple[int, int]:
    """The numbers of which batch and features should be multiples, as a pair."""
    half = jnp.dtype(dtype).itemsize < 4
    return (rules.sizes.half if half else None) or rules.sizes.multiples


def misaligned(
    sizes: Sizes, dtype: str, machine: Machine, rules: Rules
) -> Iterator[str]:
    """Messages about sizes that do not fit the machine."""
    batch, features = multiples(dtype, rules)
    tile, best = rules.sizes.side, rules.sizes.best
    for name, multiple in (("B", batch), ("D", features), ("H", features)):
        size = getattr(sizes, name)
        if size % multiple:
            yield (
                f"{name}={size} is not a multiple of {multiple} ({dtype} on "
                f"{machine.kind}); the next one is {next_multiple(size, multiple)}"
            )
    for name in ("B", "H"):
        if (size := getattr(sizes, name)) < tile:
            yield (
                f"{name}={size} is less than {tile}, the side of a tile of a product: "
                "a part of it stays empty"
            )
        elif best and next_multiple(size, tile) > (1 + WASTE) * size:
            yield (
                f"{name}={size} is not a multiple of {tile}, and leaves a tile partly "
                f"empty; the next one is {next_multiple(size, tile)}, multiples of "
                f"{best} are best"
            )
    B, H = rules.sizes.waits
    if sizes.B <= B and sizes.H <= H:
        yield f"with B up to {B} and H up to {H} memory limits the recurrence"


def persistent(sizes: Sizes, dtype: str, machine: Machine, rules: Rules) -> str:
    """Whether cuDNN could keep the weights on chip for all steps, and if not, why.

    "" if the machine has no cuDNN. Only cuDNN's own LSTM, GRU and RNN have this mode,
    not loops of JAX.
    """
    if not machine.persistent:
        return ""
    wrong = []
    if dtype != "float16":
        wrong.append(f"it needs float16, not {dtype}")
    power = _power_of_two_in(sizes.H)
    if power < 32:
        wrong.append(f"H={sizes.H} is not a multiple of 32")
    elif power < min(sizes.H, rules.sizes.best):
        wrong.append(
            f"H={sizes.H} is a multiple of {power}; one of a larger power of two, up "
            f"to {rules.sizes.best}, is better"
        )
    if sizes.H > machine.persistent:
        wrong.append(f"H={sizes.H} is more than {machine.persistent}")
    power = _power_of_two_in(sizes.B)
    if power < 8:
        wrong.append(f"B={sizes.B} is not a multiple of 8")
    elif power == 8 and sizes.B > 32:
        passes = "both passes" if sizes.B > 96 else "the backward pass"
        wrong.append(
            f"B={sizes.B} is a multiple of 8; {passes} may need one of a larger power "
            "of two"
        )
    return "; ".join(wrong) or "these sizes fit"


def _power_of_two_in(size: int) -> int:
    """The largest power of two that divides a size."""
    return size & -size


def alternatives(
    sizes: Sizes, dtype: str, machine: Machine, rules: Rules, side_by_side: bool
) -> Iterator[Alternative]:
    """List changes of sizes or dtype to compare with.

    Args:
        sizes: the sizes of the layer.
        dtype: the dtype of the operands of products.
        machine: the machine that the advice is for.
        rules: what the executor prefers there.
        side_by_side: whether equal layers may run at the same time.
    """
    for name, what in (
        ("B", "a batch of {new} in place of {old}"),
        ("H", "H={new} in place of {old}"),
        ("T", "{new} steps in place of {old}"),
    ):
        old = getattr(sizes, name)
        larger = sizes._replace(**{name: 2 * old})
        yield Alternative(what.format(new=2 * old, old=old), larger, dtype)
    if side_by_side:
        what = "two such layers, which then run side by side (num_layers=2)"
        yield Alternative(what, sizes, dtype, layers=2)
    if machine.pays("bfloat16") and dtype == "float32":
        what = "operands of bfloat16, with accumulation in float32"
        yield Alternative(what, sizes, "bfloat16")
    elif machine.pays("float16") and dtype == "float32":
        what = "operands of float16, with accumulation in float32"
        yield Alternative(what, sizes, "float16")
    batch, features = multiples(dtype, rules)
    fitting = Sizes(
        sizes.T,
        next_multiple(sizes.B, batch),
        next_multiple(sizes.D, features),
        next_multiple(sizes.H, features),
    )
    if fitting != sizes:
        named = zip(Sizes._fields, fitting, sizes, strict=True)
        text = ", ".join(f"{name}={new}" for name, new, old in named if new != old)
        yield Alternative(f"sizes that fit, {text}", fitting, dtype)
