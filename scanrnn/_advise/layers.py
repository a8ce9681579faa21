"""The plan of a layer of given sizes, to estimate its cost."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn._scan import plan
from scanrnn.cells import Cell
from scanrnn.cells._cell import param_types
from scanrnn.cells._wrapper import Wrapper
from scanrnn.machines import Machine
from scanrnn.planner import Options, Plan, make_plan, trace


class Sizes(NamedTuple):
    """The sizes of a recurrent layer.

    Attributes:
        T: the number of steps.
        B: the number of sequences in a batch.
        D: the number of input features.
        H: the number of features of the carry.
    """

    T: int
    B: int
    D: int
    H: int


def plan_of(cell: Cell, sizes: Sizes, dtype: str, machine: Machine) -> Plan:
    """Plan a layer of these sizes. No array is allocated."""
    return plan(*_layer(cell, sizes, dtype), machine=machine)


def refusal_of(
    executor: Any,
    check: Callable[[Plan], str | None],
    cell: Cell,
    sizes: Sizes,
    dtype: str,
    machine: Machine,
) -> str | None:
    """Why an executor would not run a layer of these sizes, or None.

    Args:
        executor: the executor; the plan is made under its rules.
        check: its own check of a plan.
        cell: the cell of the layer.
        sizes: the sizes of the layer.
        dtype: the dtype of the operands of products.
        machine: the machine.
    """
    traced = trace(*_layer(cell, sizes, dtype), None)
    options = Options(machine=machine, implementation=executor.NAME)
    made = make_plan(traced, options, machine, executor.rules(machine))
    return check(made)


def _layer(cell, sizes, dtype):
    """The step of a layer, its carry and its inputs, without arrays."""
    if dtype != dtype_of(cell):
        cell = _of_dtype(cell, dtype)
    params = param_types(cell, sizes.D, sizes.H)
    xs = jax.ShapeDtypeStruct((sizes.T, sizes.B, sizes.D), jnp.float32)
    x = jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    carry = jax.eval_shape(cell.initial_carry, params, x)

    def step(carry, x):
        held, state = carry
        state, y = cell.step(held, state, x)
        return (held, state), y

    # The weights are part of the carry, so that they can be abstract values. A plan
    # treats a carry that does not change as weights.
    return step, (params, carry), xs


def dtype_of(cell: Cell) -> str:
    """The name of the dtype of the operands of a cell's products."""
    return str(jnp.dtype(cell.dtype or jnp.float32))


def _of_dtype(cell, dtype):
    """The same cell, with operands of another dtype, if it has such an option."""
    if isinstance(cell, Wrapper):
        return dataclasses.replace(cell, inner=_of_dtype(cell.inner, dtype))
    if "dtype" not in vars(cell):
        return cell
    return dataclasses.replace(cell, dtype=jnp.dtype(dtype))
