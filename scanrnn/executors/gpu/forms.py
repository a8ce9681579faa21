"""Forms: how a kernel for a GPU finds the arrays of a step in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var

from scanrnn.planner.ir import ops


class Form(NamedTuple):
    """How an array lies in memory.

    Attributes:
      aval: the type of the array in the step.
      shape: its shape in memory.
      order: the order of its axes in memory, before they get this shape.
      transposed: whether the last two axes of this shape change places.
    """

    aval: Any
    shape: tuple[int, ...]
    order: tuple[int, ...]
    transposed: bool = False

    @classmethod
    def of(cls, v: Var, shape: tuple[int, ...]) -> Form:
        """The form of a variable whose axes keep their order."""
        return cls(ops.aval(v), shape, tuple(range(ops.aval(v).ndim)))

    @property
    def dtype(self):
        """The dtype in memory: Triton does not load booleans."""
        dtype = self.aval.dtype
        return jnp.dtype("int8") if dtype == jnp.bool_ else dtype

    def struct(self, *lead) -> jax.ShapeDtypeStruct:
        """The type of the array in memory, with `lead` axes."""
        return jax.ShapeDtypeStruct((*lead, *self.shape), self.dtype)

    def stored(self, array, *lead):
        """An array of the step as it lies in memory."""
        array = jnp.asarray(array, self.dtype)
        axes = (*range(len(lead)), *(len(lead) + i for i in self.order))
        array = jnp.reshape(jnp.transpose(array, axes), (*lead, *self.shape))
        return jnp.swapaxes(array, -1, -2) if self.transposed else array

    def restored(self, array, *lead):
        """An array of the step from one as it lies in memory."""
        sizes = (self.aval.shape[i] for i in self.order)
        back = (len(lead) + self.order.index(i) for i in range(len(self.order)))
        array = lax.reshape(array, (*lead, *sizes))
        return jnp.transpose(array, (*range(len(lead)), *back)).astype(self.aval.dtype)


class Piece(NamedTuple):
    """A part of an array of the step that is a variable of a kernel's step.

    Attributes:
      array: the array.
      index: where the part lies in memory. A string, such as "examples" or "head",
        stands for what is a program's own.
    """

    array: Var
    index: tuple[int | str | slice, ...] = ()

    def at(self, own: Mapping[str, Any]) -> tuple:
        """The index, given what is a program's own."""
        return tuple(own[i] if isinstance(i, str) else i for i in self.index)
