"""The parts of matrices that a program multiplies by, and where it keeps them.

Triton has no slices. So a program reads the matrix of each gate by itself, or the rows
for each of the arrays that are joined on the left.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.rows import spans

# The fast memory that a program needs besides matrices, to exchange numbers between its
# threads: 8 KB for an LSTM of 128 features in float32, by the compiler of an H100.
EXCHANGE = 20 * 2**10
# The bytes of matrices that a thread has in its registers: half of all registers.
OF_A_THREAD = 512
# Threads of a warp, and rows of the tiles that the tensor cores multiply.
THREADS, TILE = 32, 16
LEAST_WARPS, MOST_WARPS = 4, 8


class Part(NamedTuple):
    """Some rows and columns of a matrix, each a start and a size."""

    rows: tuple[int, int]
    columns: tuple[int, int]


class Kept(NamedTuple):
    """Where a program keeps parts of each matrix for all steps.

    Attributes:
      registers: parts that lie in registers, as the tensor cores read them.
      fast_memory: parts that lie in the fast memory. All others share the room of the
        largest of them, one after the other: they are read again at every step.
      held: the bytes of the parts in the fast memory.
      read: the bytes of the parts that are read again at every step.
      warps: the number of warps of a program, whose registers these are.
    """

    registers: Mapping[Var, list[Part]]
    fast_memory: Mapping[Var, list[Part]]
    held: int
    read: int
    warps: int


def casts(eqn: JaxprEqn) -> bool:
    """Whether an equation changes the dtype of a value."""
    return eqn.primitive.name == "convert_element_type" and not ops.is_literal(
        eqn.invars[0]
    )


def joins_of(graph: Graph) -> dict[Var, list[int]]:
    """The arrays that a program has in parts, with the sizes of the parts."""
    found: dict[Var, list[int]] = {}
    for eqn in graph.eqns:
        if eqn.primitive.name == "concatenate":
            found[eqn.outvars[0]] = [n for v in eqn.invars for n in _sizes(v, found)]
        elif casts(eqn) and eqn.invars[0] in found:
            found[eqn.outvars[0]] = found[eqn.invars[0]]
    return found


def _sizes(atom: Any, joins: Mapping[Var, list[int]]) -> list[int]:
    """The sizes of the parts of a value; one if it is whole."""
    whole = [ops.aval(atom).shape[-1]]
    return whole if ops.is_literal(atom) else joins.get(atom, whole)


def sides_of(
    eqn: JaxprEqn, joins: Mapping[Var, list[int]], graph: Graph
) -> tuple[list[int], list[int]]:
    """The rows and the columns of the parts of the matrix of a product."""
    return _sizes(eqn.invars[0], joins), _widths(eqn.outvars[0], graph)


def _widths(v: Var, graph: Graph) -> list[int]:
    """The parts that a step reads of a product, which it may split more than once."""
    reader, *others = graph.consumers.get(v, [None])
    if others or reader is None or reader.primitive.name != "split":
        return [ops.aval(v).shape[1]]
    return [size for u in reader.outvars for size in _widths(u, graph)]


def kept_parts(graph: Graph, matrices: frozenset[Var], memory: int) -> Kept:
    """Where a program keeps the parts of matrices.

    Args:
      graph: the step of a program.
      matrices: the weights that it reads part by part.
      memory: the bytes of the fast memory.
    """
    registers: dict[Var, list[Part]] = {v: [] for v in matrices}
    fast: dict[Var, list[Part]] = {v: [] for v in matrices}
    parts = _parts(graph, matrices)
    warps = _warps(parts)
    free = OF_A_THREAD * THREADS * warps
    others, mixed = [], _of_two_dtypes(graph)
    for v, part in parts:
        size = ops.aval(v).dtype.itemsize * part.rows[1] * part.columns[1]
        half = ops.aval(v).dtype.itemsize == 2 and v not in mixed
        if half and part.columns[1] >= part.rows[1] and size <= free:
            registers[v].append(part)
            free -= size
        else:
            others.append((v, part, size))
    sizes = [size for *_, size in others]
    room = memory - EXCHANGE
    if sum(sizes) > room:
        room -= max(sizes, default=0)
    held = 0
    for v, part, size in others:
        if size <= room - held:
            fast[v].append(part)
            held += size
    return Kept(registers, fast, held, sum(sizes) - held, warps)


def _warps(parts: list[tuple[Var, Part]]) -> int:
    """The warps of a program: each multiplies one tile of rows, if there are enough."""
    widths = [part.columns[1] for _, part in parts]
    tiles = max(widths, default=MOST_WARPS * TILE) // TILE
    return max(LEAST_WARPS, min(MOST_WARPS, tiles))


def _of_two_dtypes(graph: Graph) -> set:
    """The matrices of products whose factors differ in dtype."""
    products = (e for e in graph.eqns if e.primitive.name in ops.PRODUCTS)
    pairs = (e.invars for e in products)
    return {b for a, b in pairs if ops.aval(a).dtype != ops.aval(b).dtype}


def _parts(graph: Graph, matrices: frozenset[Var]) -> list[tuple[Var, Part]]:
    """Every part of a matrix that a step multiplies by, once."""
    joins, found = joins_of(graph), {}
    for eqn in graph.eqns:
        if eqn.primitive.name in ops.PRODUCTS and eqn.invars[1] in matrices:
            rows, columns = map(spans, sides_of(eqn, joins, graph))
            for place in itertools.product(rows, columns):
                found[eqn.invars[1], Part(*place)] = None
    return list(found)
