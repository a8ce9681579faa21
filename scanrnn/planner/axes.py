"""What the axes of a contraction (a dot or a convolution) mean."""

from __future__ import annotations

from jax import lax
from jax.extend.core import JaxprEqn

from scanrnn.planner import ops


def contracted(eqn: JaxprEqn, side: int) -> dict[int, int]:
    """The contracted axes of one operand, each with its partner in the other one."""
    if eqn.primitive.name == "dot_general":
        (contract, _) = eqn.params["dimension_numbers"]
        return dict(zip(contract[side], contract[1 - side], strict=True))
    if eqn.primitive.name != ops.CONVOLUTION or _in_groups(eqn):
        return {}
    channels = _spec(eqn).lhs_spec[1], _spec(eqn).rhs_spec[1]
    return {channels[side]: channels[1 - side]}


def features(eqn: JaxprEqn, side: int) -> tuple[int, int] | None:
    """The feature axis of a weight matrix, and the same axis in the result.

    For a convolution it is the axis of the kernel with the output channels. None if the
    operand is not such a matrix or kernel.
    """
    if ops.is_matrix_of(eqn, side):
        (contract, _) = eqn.params["dimension_numbers"]
        last = ops.aval(eqn.outvars[0]).ndim - 1
        return 1 - contract[side][0], 0 if side == 0 else last
    if eqn.primitive.name == ops.CONVOLUTION and side == 1 and not _in_groups(eqn):
        return _spec(eqn).rhs_spec[0], _spec(eqn).out_spec[1]
    return None


def _spec(convolution: JaxprEqn) -> lax.ConvDimensionNumbers:
    return convolution.params["dimension_numbers"]


def _in_groups(convolution: JaxprEqn) -> bool:
    names = ("feature_group_count", "batch_group_count")
    return any(convolution.params[name] != 1 for name in names)
