"""What a program of a kernel for a GPU runs: its part of a step, as a `View`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, free

Store = Callable[[int, Any], None]


class View(Protocol):
    """The part of a step that each program of a kernel runs."""

    @property
    def graph(self) -> Graph:
        """The step, without calls."""
        ...

    @property
    def inputs(self) -> Sequence[Piece]:
        """Which part of the step's arrays each input of the graph is."""
        ...

    @property
    def ys(self) -> Sequence[Piece]:
        """Which part of the step's arrays each of the ys of the graph is."""
        ...

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of programs, by axis."""
        ...

    def seconds(self, cores: int) -> float:
        """An estimate of the seconds of a step, on a GPU with so many cores."""
        ...

    @property
    def warps(self) -> int:
        """The number of warps of a program."""
        ...

    @property
    def steps(self) -> int:
        """The most steps whose rows are loaded together."""
        ...

    @property
    def loads_ahead(self) -> bool:
        """Whether these are loaded while the steps before them are computed."""
        ...

    def form(self, v: Var) -> Form:
        """How an array of the step lies in memory, without the axis of time."""
        ...

    def places(self, pieces: Sequence[Piece]) -> list[tuple]:
        """Inside the kernel: the indices of this program's part of some pieces."""
        ...

    def read(self, v: Var, ref, place: tuple) -> Any:
        """Inside the kernel: what a step gets for a weight or a row."""
        ...

    def step(self, values: dict[Any, Any], store: Store, exchange: Any) -> list:
        """Inside the kernel: the next carry, given the inputs of a step.

        `store` takes each of the ys, by its index. `exchange` is None for a view whose
        programs do not exchange.
        """
        ...


@runtime_checkable
class ExchangingView(View, Protocol):
    """A view whose programs exchange parts of arrays at each step."""

    def shared(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the arrays through which they exchange."""
        ...

    def exchange(self, refs: Sequence, step: Any) -> Any:
        """Inside the kernel: the exchanges of a step."""
        ...

    def own(self, part: Any, block: Any) -> dict[str, Any]:
        """What the pieces of a program have of their own, given its place."""
        ...


def read_weights(graph: Graph) -> list[Var]:
    """The weights that a step reads."""
    read = free(graph.eqns, graph.outs)
    return [v for v in graph.weights if v in read]


def keeping_nan(found, array, axes: Sequence[int]):
    """A maximum or minimum of an array over axes, with the NaN that Triton's drops."""
    lost = (array != array).astype(found.dtype).max(axes)
    return jnp.where(lost > 0, jnp.asarray(jnp.nan, found.dtype), found)


def loaded(v: Var, value):
    """The value of a variable, from one that is read from memory."""
    return value != 0 if ops.aval(v).dtype == jnp.bool_ else value
