"""The view of a step whose state is a matrix: each program runs one state.

A matrix memory has one for each example and head. All arrays of a step lie in the
registers of a program, so its size is limited. If a state is larger, and its columns
(or its rows) need nothing of one another, a program runs a part of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.extend.core import Var

from scanrnn.executors.gpu.block_checks import (
    NoRoomError,
    NotAKernelError,
    check_one_state,
)
from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.one_state import OneState
from scanrnn.executors.gpu.states import Cut
from scanrnn.executors.gpu.triton import computed
from scanrnn.executors.gpu.view import Store, loaded
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, eval_eqn, variables

# Into how many parts a state may be cut.
_PARTS = (2, 4, 8)


@dataclasses.dataclass(frozen=True, eq=False)
class StateView:
    """One state of the step, or a part of it, by index: a `View`.

    Attributes:
      one: the step of one state, or of a part of it.
      warps: the number of warps of a program.
      steps: the most steps whose rows are loaded together: rows take many registers.
      loads_ahead: whether these are loaded while the steps before them are computed.
    """

    one: OneState
    warps: int = 8
    steps: int = 1
    loads_ahead: bool = False

    @classmethod
    def of(cls, graph: Graph, state: Var) -> StateView:
        """The view of a step.

        Raises:
          NotAKernelError: if a program cannot run it.
        """
        one = OneState.of(graph, state)
        try:
            check_one_state(one.graph)
        except NoRoomError as reason:
            return cls(_part_of_a_state(graph, state, reason))
        return cls(one)

    @property
    def graph(self) -> Graph:
        """The step of one state."""
        return self.one.graph

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies matrices, as chunks of a delta rule do."""
        return any(e.primitive.name in ops.PRODUCTS for e in self.graph.eqns)

    @property
    def inputs(self) -> list[Piece]:
        """The parts of one state."""
        return list(map(self.one.layout.piece, self.one.whole.inputs))

    @property
    def ys(self) -> list[Piece]:
        """The parts of one state."""
        return list(map(self.one.layout.piece, variables(self.one.whole.ys)))

    @property
    def grid(self) -> tuple[int]:
        """A program for each state."""
        return (self.one.layout.count,)

    def seconds(self, cores: int) -> float:
        """What a step takes, by an mLSTM (1024, 4, 512) with 4 heads on an H200."""
        return 6e-6 * pl.cdiv(self.one.layout.count, cores)

    def form(self, v: Var) -> Form:
        """How an array of all states lies in memory."""
        return self.one.layout.form(v)

    def places(self, pieces: Sequence[Piece]) -> list[tuple]:
        """The places of this program's state."""
        own = self.one.layout.own(pl.program_id(0))
        return [piece.at(own) for piece in pieces]

    def read(self, v: Var, ref, place: tuple) -> Any:
        """How to load a weight or a row: when a step first needs it."""
        return lambda: loaded(v, ref[place])

    def step(self, values: dict[Any, Any], store: Store, exchange: None = None) -> list:
        """The next carry of one state. What the step makes is stored at once.

        So few arrays are in registers: an mLSTM with a state of 128x128 spilled eight
        times as many bytes if each step loads all rows first and stores all ys last.
        """
        graph, unstored = self.graph, dict(enumerate(self.graph.ys))

        def read(atom):
            if ops.is_literal(atom):
                return jnp.asarray(atom.val, ops.aval(atom).dtype)
            if callable(values[atom]):
                values[atom] = values[atom]()
            return values[atom]

        def store_known():
            for k, y in list(unstored.items()):
                if ops.is_literal(y) or y in values:
                    store(k, read(unstored.pop(k)))

        store_known()
        for eqn in graph.eqns:
            ins, (out,) = list(map(read, eqn.invars)), eqn.outvars
            multiplies = eqn.primitive.name in ops.PRODUCTS
            values[out] = eval_eqn(eqn, ins)[0] if multiplies else computed(eqn, ins)
            store_known()
        return list(map(read, graph.carry_out))


def _part_of_a_state(graph: Graph, state: Var, reason: NoRoomError) -> OneState:
    """The step of the largest part of a state that a program can run.

    Raises:
      NotAKernelError: the reason why it cannot run a whole state, if there is none.
    """
    for parts, axis in itertools.product(_PARTS, (-1, -2)):
        if ops.aval(state).shape[axis] % parts:
            continue
        try:
            one = OneState.of(graph, state, Cut(axis, parts))
            check_one_state(one.graph)
        except NotAKernelError:
            continue
        return one
    raise reason
