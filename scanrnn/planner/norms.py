"""Norms of what is computed before the loop, and in what pieces to differentiate them.

XLA for CPU makes an array of everything that a reduction reads, and shares between
forward and backward what both compute: the gradient of a layer norm of a sequence
takes five arrays of its size, two of them kept through the loops. Of a piece of the
sequence that is little, and it stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from jax.extend.core import Var

from scanrnn.planner import ops
from scanrnn.planner.graph import TIME, Graph, needed, variables

# An array of fewer bytes is differentiated at once; a piece is of about so many.
WORTH, PIECE = 2**22, 2**21


class Norms(NamedTuple):
    """What is left to do before the loop once contractions are done.

    Attributes:
      streams: what it reads of each step: time inputs and products.
      constants: what it reads of weights alone.
      outs: what it computes of each step.
      size: the number of steps in a piece.
    """

    streams: tuple[Var, ...]
    constants: tuple[Var, ...]
    outs: tuple[Var, ...]
    size: int


def find_norms(graph: Graph, wanted: Iterable[Var], length: int) -> Norms | None:
    """The work in which there are reductions, where pieces of it are of use."""
    bits = graph.depends()
    heavy = (v for eqn in graph.eqns if ops.is_heavy(eqn) for v in eqn.outvars)
    known = (*graph.xs, *(v for v in heavy if bits[v] & TIME))
    outs = tuple(v for v in wanted if v not in known)
    eqns = needed(graph.eqns, outs, known)
    eqns = [e for e in eqns if any(bits[v] for v in e.outvars)]
    if not any(map(ops.is_reduction, eqns)) or not all(map(ops.is_inexact, outs)):
        return None
    read = dict.fromkeys(v for eqn in eqns for v in variables(eqn.invars))
    streams = tuple(v for v in known if v in read)
    constants = tuple(v for v in read if not bits[v])
    size = _size(length, max(map(ops.bytes_of, (*streams, *outs))))
    return Norms(streams, constants, outs, size) if size < length else None


def _size(length: int, row: int) -> int:
    """Steps in a piece, all pieces alike; all steps where pieces are no use."""
    if row * length < WORTH or length == 1:
        return length
    # Of one step alone XLA would sum by columns, which is five times as slow.
    most = min(PIECE // row, length - 1)
    fits = (d for d in range(most, 1, -1) if not length % d)
    least = (d for d in range(2, length + 1) if not length % d)
    return next(fits, None) or next(least)
