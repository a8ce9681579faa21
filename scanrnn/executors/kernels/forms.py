"""Forms: how a kernel holds values that come from outside or go back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Var

from scanrnn.planner.integers import next_multiple
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, free, variables

# The rows and columns, of 32 bits, of a register. Mosaic's arrays consist of registers.
ROWS, COLUMNS = 8, 128
# Dimension numbers of `a @ b`.
_PRODUCT = (((1,), (0,)), ((), ()))
# Rounded to bfloat16, their results in float32 are those of bfloat16.
_EXACT = ops.ADDITIVE | {"mul"}


class Form(NamedTuple):
    """How a kernel holds values of a type: with two axes at least, and no booleans.

    Attributes:
      aval: the type of the values in the step.
      packed: whether it is a bfloat16 matrix whose rows lie in pairs, each pair as one
        row of 32 bits. This is the layout that the matrix units take. Any other layout
        would be converted at every step.
      wide: whether it is one bfloat16 row, held in float32. The units that read it
        compute in float32, and would convert it for each row of registers.
    """

    aval: Any
    packed: bool = False
    wide: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the kernel."""
        if self.packed:
            return self.aval.shape[0] // 2, self.aval.shape[1]
        return (*(1,) * (2 - self.aval.ndim), *self.aval.shape)

    @property
    def dtype(self):
        """The dtype in the kernel."""
        if self.packed:
            return jnp.dtype("uint32")
        if self.wide:
            return jnp.dtype("float32")
        return jnp.dtype("int32") if self.aval.dtype == bool else self.aval.dtype

    def struct(self, *lead) -> jax.ShapeDtypeStruct:
        """The type of the array that enters or leaves the kernel, with `lead` axes."""
        return jax.ShapeDtypeStruct((*lead, *self.shape), self.dtype)

    def bytes(self) -> int:
        """Bytes in fast memory, with the last two axes padded to whole registers."""
        *lead, rows, columns = self.shape
        numbers = (
            ops.product(lead)
            * next_multiple(rows, ROWS)
            * next_multiple(columns, COLUMNS)
        )
        return numbers * self.dtype.itemsize

    def stored(self, array, *lead):
        """Convert an array from outside to the form that the kernel holds."""
        if self.packed:
            # XLA for CPU folds a bitcast that joins two numbers to wrong constants.
            bits = lax.bitcast_convert_type(array, jnp.uint16).astype(self.dtype)
            return bits[0::2] | bits[1::2] << 16
        return lax.reshape(array.astype(self.dtype), (*lead, *self.shape))

    def restored(self, array, *lead):
        """Convert an array from the kernel to the type outside."""
        return lax.reshape(array, (*lead, *self.aval.shape)).astype(self.aval.dtype)

    def value(self, held):
        """Convert a value that the kernel holds to the type in the step."""
        value = held if self.shape == self.aval.shape else held.reshape(self.aval.shape)
        return value != 0 if self.aval.dtype == bool else value

    def held(self, value):
        """Convert a value of the step to the form that the kernel holds."""
        value = jnp.asarray(value, self.aval.dtype).astype(self.dtype)
        return value if value.shape == self.shape else value.reshape(self.shape)


class Matrix(NamedTuple):
    """A matrix in fast memory that a step reads a few rows at a time."""

    form: Form
    ref: Any

    def rows(self, start: int, size: int):
        """`size` rows of the matrix from row `start` on."""
        if not self.form.packed:
            return self.ref[start : start + size]
        pairs = self.ref[start // 2 : (start + size) // 2]
        return pltpu.bitcast(pairs, self.form.aval.dtype)


def weights_of(graph: Graph) -> tuple[dict[Var, Form], set[Var]]:
    """The forms of the weights that a step reads; and those it only multiplies by."""
    read, matrices = free(graph.eqns, graph.outs), multiplied(graph)
    found, rows = {}, _half_rows(graph)
    for v in graph.weights:
        aval = ops.aval(v)
        half = v in matrices and aval.dtype == jnp.bfloat16
        packed = half and not (aval.shape[0] % (2 * ROWS) or aval.shape[1] % COLUMNS)
        if v in read:
            found[v] = Form(aval, packed, v in rows)
    return found, matrices


def multiplied(graph: Graph) -> set[Var]:
    """The weights that a step reads only in products `data @ matrix`."""
    found, others = set(), {*variables(graph.outs)}
    for eqn in graph.eqns:
        for side, v in enumerate(eqn.invars):
            group = found if side == 1 and _is_product(eqn) else others
            group.update(variables([v]))
    return (found - others) & {*graph.weights}


def _half_rows(graph: Graph) -> set[Var]:
    """The weights of one bfloat16 row that a step only adds or multiplies."""
    others = {*variables(graph.outs)}
    for eqn in graph.eqns:
        if eqn.primitive.name not in _EXACT:
            others.update(variables(eqn.invars))
    avals = {v: ops.aval(v) for v in graph.weights if v not in others}
    rows = {v: aval for v, aval in avals.items() if aval.shape[:-1] == (1,)}
    return {v for v, aval in rows.items() if aval.dtype == jnp.bfloat16}


def _is_product(eqn) -> bool:
    if eqn.primitive.name not in ops.PRODUCTS:
        return False
    flat = all(ops.aval(v).ndim == 2 for v in eqn.invars)
    (ours, theirs), batch = eqn.params["dimension_numbers"]
    numbers = (tuple(ours), tuple(theirs)), tuple(map(tuple, batch))
    return flat and numbers == _PRODUCT


def forms(atoms: Iterable) -> list[Form]:
    """The forms of some values."""
    return [Form(ops.aval(v)) for v in atoms]


def whole(form: Form) -> pl.BlockSpec:
    """A block that is the whole array at every point of the grid, loaded once."""
    zeros = (0,) * len(form.shape)
    return pl.BlockSpec(form.shape, lambda *_: zeros, pipeline_mode=pl.Buffered(1))


def of_its_part(form: Form) -> pl.BlockSpec:
    """A block for each part of the batch; the parts are the first axis of the array."""
    zeros = (0,) * len(form.shape)
    return pl.BlockSpec(
        (None, *form.shape),
        lambda part, _: (part, *zeros),
        pipeline_mode=pl.Buffered(1),
    )
