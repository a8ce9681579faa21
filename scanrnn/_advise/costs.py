"""What a training step of a layer takes on a machine, by estimate."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scanrnn._scan import plan
from scanrnn.cells import Cell
from scanrnn.machines import Machine
from scanrnn.planner import Plan


class Sizes(NamedTuple):
    """The sizes of a recurrent layer.

    Attributes:
        T: steps.
        B: sequences in a batch.
        D: features of the input.
        H: features of the carry.
    """

    T: int
    B: int
    D: int
    H: int


class Cost(NamedTuple):
    """What a training step of a layer takes, by a model that knows no more than this.

    A product takes as long as the longest of three: its arithmetic, its traffic with
    the memory, and starting it.

    Attributes:
        flops: operations of its products.
        moved: bytes that products and the reverse loop read and write.
        arithmetic: seconds of products that are bound by arithmetic.
        memory: seconds of those bound by memory, and of what is kept for the reverse.
        dispatch: seconds of those bound by being started, and of the loop's trips.
    """

    flops: float
    moved: float
    arithmetic: float
    memory: float
    dispatch: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.arithmetic + self.memory + self.dispatch

    @property
    def bound(self) -> str:
        """The largest of the three."""
        parts = ("arithmetic", "memory", "dispatch")
        return max(parts, key=lambda part: getattr(self, part))


def plan_of(cell: Cell, sizes: Sizes, dtype: str, machine: Machine) -> Plan:
    """The plan of a layer of these sizes; no array is made."""
    if dtype != "float32" and "dtype" in vars(cell):
        cell = _of_dtype(cell, dtype)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(lambda key: cell.init(key, sizes.D, sizes.H), key)
    xs = jax.ShapeDtypeStruct((sizes.T, sizes.B, sizes.D), jnp.float32)
    x = jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    carry = jax.eval_shape(cell.initial_carry, params, x)

    def step(carry, x):
        held, state = carry
        state, y = cell.step(held, state, x)
        return (held, state), y

    # The weights are carried unchanged, so that they need not be arrays.
    return plan(step, (params, carry), xs, machine=machine)


def _of_dtype(cell, dtype):
    """The cell with operands of another dtype."""
    if hasattr(cell, "inner"):
        return dataclasses.replace(cell, inner=_of_dtype(cell.inner, dtype))
    return dataclasses.replace(cell, dtype=jnp.dtype(dtype))


def cost_of(plan: Plan, machine: Machine, dtype: str) -> Cost:
    """The cost of a plan, product by product."""
    peak = machine.peaks.get(dtype, machine.peaks["float32"])
    size = jnp.dtype(dtype).itemsize
    seconds = {"arithmetic": 0.0, "memory": 0.0, "dispatch": 0.0}
    flops = moved = 0.0
    tile_m, tile_n, tile_k = _tiles(machine)
    for row in plan.gemms:
        padded = up(row.M, tile_m) * up(row.N, tile_n) * up(row.K, tile_k)
        weights = row.M * row.K
        if size * weights <= machine.fast_memory * machine.cores:
            weights /= row.count  # it stays where it was read to
        bytes_once = size * (weights + row.K * row.N + row.M * row.N)
        parts = {
            "arithmetic": 2 * padded / peak,
            "memory": bytes_once / machine.bandwidth,
            "dispatch": machine.launch,
        }
        part = max(parts, key=lambda name: parts[name])
        seconds[part] += row.count * parts[part]
        flops += row.flops
        moved += row.count * bytes_once
    kept = 2.0 * (plan.residual_bytes[0] or 0)
    moved += kept
    seconds["memory"] += kept / machine.bandwidth
    # Besides products, a trip starts one kernel for all the rest, there and back.
    seconds["dispatch"] += 2 * plan.length * machine.launch
    return Cost(flops, moved, **seconds)


def up(size: int, tile: int) -> int:
    """The next multiple of a tile."""
    return -(-size // tile) * tile


def _tiles(machine):
    """What sizes of a product are rounded up to: features, batch, depth."""
    if machine.platform == "tpu":
        return 128, 8, 128
    if machine.platform in ("cuda", "rocm"):
        return 64, 16, 16
    return 16, 1, 1
