"""Check, when a plan is made, what Triton can do with a step that has products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.gpu.lanes import ELEMENTWISE, MOVES
from scanrnn.executors.gpu.parts import joins_of, sides_of
from scanrnn.executors.gpu.view import read_weights
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph

# The fewest rows and columns of a matrix in a product of Triton.
LEAST_SIDE = 16
# The numbers of an array that a program has in registers: 32 for each thread. A delta
# rule with 512 for each (two heads of 64, sixteen examples) spilled 55 KB of a thread.
NUMBERS = 2**13
# The numbers of an array of a program that runs one state, of a step without and with
# products of matrices: 64 and 32 for each thread. Bytes spilled forward and in reverse,
# by the compiler of an H100: a delta rule with 128x128 none, an mLSTM 0 and 112. Chunks
# of a gated delta rule, by halves of a 128x128 state, spill 1,628 and 372 (as a whole
# 5,028 and more in reverse, by quarters no less than by halves): many arrays are needed
# at once, and registers also hold addresses for each of them.
OF_A_STATE, BESIDE_PRODUCTS = 2**14, 2**13
# The bytes of a part of a matrix that a program multiplies by at once.
MOST_BYTES = 2**17
SUMS = {"reduce_sum", "reduce_max", "reduce_min"}


class NotAKernelError(Exception):
    """The reason why no program can run a step for some of its examples."""


class NoRoomError(NotAKernelError):
    """A program has no room for the arrays of a step."""


def check(graph: Graph, matrices: frozenset[Var]) -> None:
    """Check what Triton can do with the equations of a step.

    Raises:
      NotAKernelError: if it cannot evaluate one.
    """
    producers, consumers, joins = graph.producers, graph.consumers, joins_of(graph)
    for eqn in graph.eqns:
        name, (out, *_) = eqn.primitive.name, eqn.outvars
        if name in ops.PRODUCTS:
            _check_product(eqn, matrices, joins, graph)
        elif name == "split":
            made, sizes = producers.get(eqn.invars[0]), eqn.params["sizes"]
            product = made is not None and made.primitive.name in ops.PRODUCTS
            if not product and not _in_halves(sizes):
                sizes = [*map(int, sizes)]
                raise NotAKernelError(f"Triton cannot split an array into {sizes}")
        elif out in joins:
            flat = ops.aval(out).ndim == 2
            flat &= name != "concatenate" or eqn.params["dimension"] == 1
            apart = all(_takes_parts(r, joins) for r in consumers[out])
            if not flat or not (apart or _in_halves(joins[out])):
                raise NotAKernelError(f"Triton cannot join parts of {joins[out]}")
        elif name not in ELEMENTWISE | MOVES | SUMS:
            raise NotAKernelError(f"Triton has no {name}")
    # What is never an array in a program: it is computed or read part by part.
    parted = {*joins} | {e.invars[0] for e in graph.eqns if e.primitive.name == "split"}
    made = (v for e in graph.eqns for v in e.outvars)
    for v in {*made, *read_weights(graph), *graph.carry, *graph.xs} - parted - matrices:
        check_powers(v)


def check_one_state(graph: Graph) -> None:
    """Check what Triton can do with the step of one state.

    Raises:
      NotAKernelError: if it cannot evaluate it.
      NoRoomError: if it has no room for its arrays.
    """
    names = {e.primitive.name for e in graph.eqns}
    for name in sorted(names - {*ELEMENTWISE, *MOVES, *SUMS, "dot_general", "iota"}):
        raise NotAKernelError(f"Triton has no {name}")
    for eqn in (e for e in graph.eqns if e.primitive.name == "dot_general"):
        check_numbers(eqn)
    made = [v for e in graph.eqns for v in e.outvars]
    arrays = (*read_weights(graph), *graph.carry, *graph.xs, *made)
    for v in arrays:
        check_powers(v)
    largest = max(arrays, key=lambda v: ops.product(ops.aval(v).shape))
    room = BESIDE_PRODUCTS if "dot_general" in names else OF_A_STATE
    if ops.product(ops.aval(largest).shape) > room:
        raise NoRoomError(
            f"for one state it has {ops.aval(largest).str_short()}, and in registers "
            f"there is room for {room:,} numbers of an array"
        )


def check_powers(v: Var) -> None:
    """Check that Triton can have an array.

    Raises:
      NotAKernelError: if a size is no power of two.
    """
    if any(size & (size - 1) for size in ops.aval(v).shape):
        shape = ops.aval(v).str_short()
        raise NotAKernelError(f"sizes must be powers of two, got {shape}")


def _takes_parts(reader: JaxprEqn | None, joins: Mapping[Var, list[int]]) -> bool:
    """Whether an equation reads an array part by part; None stands for an output."""
    if reader is None:
        return False
    return reader.primitive.name in ops.PRODUCTS or reader.outvars[0] in joins


def _in_halves(sizes: Sequence[int]) -> bool:
    """Whether an array in parts of these sizes can be halved again and again."""
    return len({*sizes}) == 1 and not len(sizes) & (len(sizes) - 1)


def check_numbers(eqn: JaxprEqn) -> None:
    """Check the dtypes of a product, and the algorithm that is asked for."""
    dtypes = {ops.aval(v).dtype for v in (*eqn.invars, *eqn.outvars)}
    for dtype in sorted(dtypes, key=str):
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize < 2:
            raise NotAKernelError(f"it has a product of {dtype}")
    asked = eqn.params["precision"]
    if isinstance(asked, lax.DotAlgorithm) or "F8" in str(asked):
        raise NotAKernelError(f"Triton has no product by {asked}")


def _check_product(eqn: JaxprEqn, matrices, joins, graph: Graph) -> None:
    right = eqn.invars[1]
    if ops.is_literal(right) or right not in matrices:
        raise NotAKernelError("it has a product that is not by a matrix")
    check_numbers(eqn)
    depths, widths = sides_of(eqn, joins, graph)
    if min(*depths, *widths) < LEAST_SIDE:
        raise NotAKernelError("each product needs at least 16 features")
    if any(size & (size - 1) for size in (*depths, *widths)):
        raise NotAKernelError(f"sizes must be powers of two, got {widths}")
    size = max(depths) * max(widths) * ops.aval(right).dtype.itemsize
    if size > MOST_BYTES:
        raise NotAKernelError(
            f"a part of a matrix takes {size / 2**10:.0f} KB, and a program has room "
            f"for {MOST_BYTES / 2**10:.0f} KB"
        )
