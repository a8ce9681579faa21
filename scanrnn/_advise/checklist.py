"""The checklist of NVIDIA's guide: which sizes fit, and what else could be tried."""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

from scanrnn._advise.layers import Sizes
from scanrnn.machines import Machine
from scanrnn.planner.costs import up

# The side of a GPU's tiles: all kinds of products have tiles of 64, the best of 256.
TILE, BEST_TILE = 64, 256
# Of a tile's rows or columns: what is worth a message when it is empty.
WASTE = 0.1


class Alternative(NamedTuple):
    """Something that could be done instead.

    Attributes:
        what: in words.
        sizes: of each layer then.
        dtype: of the operands of products then.
        layers: how many layers run side by side.
    """

    what: str
    sizes: Sizes
    dtype: str
    layers: int = 1


def multiples(dtype: str, machine: Machine) -> tuple[int, int]:
    """The multiples that a batch and a number of features should be of."""
    if machine.platform == "tpu":
        return 8, 128
    if machine.platform in ("cuda", "rocm"):
        return (8, 8) if jnp.dtype(dtype).itemsize < 4 else (4, 4)
    return 1, 16


def misaligned(sizes: Sizes, dtype: str, machine: Machine) -> Iterator[str]:
    """What is wrong with sizes, in words."""
    batch, features = multiples(dtype, machine)
    for name, multiple in (("B", batch), ("D", features), ("H", features)):
        size = getattr(sizes, name)
        if size % multiple:
            yield (
                f"{name}={size} is no multiple of {multiple} ({dtype} on "
                f"{machine.kind}); the next one is {up(size, multiple)}"
            )
    if machine.platform in ("cuda", "rocm", "tpu"):
        for name in ("B", "H"):
            if (size := getattr(sizes, name)) < TILE:
                yield f"{name}={size} is less than {TILE}, and leaves tiles empty"
            elif machine.platform != "tpu" and up(size, TILE) > (1 + WASTE) * size:
                yield (
                    f"{name}={size} is no multiple of {TILE}, and leaves a tile partly "
                    f"empty; the next one is {up(size, TILE)}, multiples of "
                    f"{BEST_TILE} are best"
                )
        if sizes.B <= 128 and sizes.H <= 256:
            yield "with B up to 128 and H up to 256 the recurrence waits for memory"


def persistent(sizes: Sizes, dtype: str, machine: Machine) -> str:
    """Whether cuDNN could keep the weights on chip for all steps; "" if not NVIDIA's.

    That is for its own LSTM, GRU and RNN, and so for others' programs, not for loops
    of JAX.
    """
    if machine.platform != "cuda":
        return ""
    wrong = []
    if jnp.dtype(dtype).itemsize != 2:
        wrong.append(f"it needs half precision, not {dtype}")
    if sizes.H % 32:
        wrong.append(f"H={sizes.H} is no multiple of 32")
    elif sizes.H & (sizes.H - 1) and sizes.H < 256:
        wrong.append(f"H={sizes.H} is no power of two, which is best below 256")
    if sizes.H > 1024:
        wrong.append(f"H={sizes.H} is more than 1024")
    if sizes.B % 8:
        wrong.append(f"B={sizes.B} is no multiple of 8")
    elif sizes.B > 32 and sizes.B & (sizes.B - 1):
        wrong.append(f"B={sizes.B} is no power of two, as it should be above 32")
    return "; ".join(wrong) or "these sizes fit"


def alternatives(
    sizes: Sizes, dtype: str, machine: Machine, side_by_side: bool
) -> Iterator[Alternative]:
    """What could be changed, and what it would be then.

    Args:
        sizes: of the layer.
        dtype: of the operands of products.
        machine: that it is for.
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
    batch, features = multiples(dtype, machine)
    fitting = Sizes(
        sizes.T, up(sizes.B, batch), up(sizes.D, features), up(sizes.H, features)
    )
    if fitting != sizes:
        named = zip(Sizes._fields, fitting, sizes, strict=True)
        text = ", ".join(f"{name}={new}" for name, new, old in named if new != old)
        yield Alternative(f"sizes that fit, {text}", fitting, dtype)
