"""The sizes of a contraction, its pieces, and the work of those in an equation."""

from __future__ import annotations

import math

from jax import lax
from jax.extend.core import JaxprEqn, jaxprs_in_params

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import eval_eqn


def multiplications(eqn) -> int:
    """The multiplications of a contraction, or of all of them in a program."""
    if ops.is_heavy(eqn) or eqn.primitive.name == ops.PRODUCT:
        return math.prod(sizes_of(eqn))
    eqns = (e for jaxpr in jaxprs_in_params(eqn.params) for e in jaxpr.eqns)
    trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return ops.product([trips]) * sum(map(multiplications, eqns))


def sizes_of(eqn, weight: int = 0) -> tuple[int, int, int]:
    """M (weight side), N (data side) and K of one step's contraction."""
    if eqn.primitive.name == ops.CONVOLUTION:
        out, kernel = eqn.outvars[0].aval, eqn.invars[1].aval
        spec = eqn.params["dimension_numbers"]
        M = kernel.shape[spec.rhs_spec[0]]
        return M, ops.size_of(out) // M, ops.size_of(kernel) // M
    contract, batch = eqn.params["dimension_numbers"]

    def free(i):
        used = {*contract[i], *batch[i]}
        shape = eqn.invars[i].aval.shape
        return ops.product(d for j, d in enumerate(shape) if j not in used)

    shape = eqn.invars[0].aval.shape
    K = ops.product(shape[j] for j in contract[0])
    many = ops.product(shape[j] for j in batch[0])
    return free(weight), free(1 - weight) * many, K


def dot_in_pieces(dot: JaxprEqn, side: int, sizes: tuple, matrix, data) -> list:
    """The results of a dot for each piece of its matrix, which is operand `side`."""
    (contract, _) = dot.params["dimension_numbers"]
    pieces = lax.split(matrix, sizes, 1 - contract[side][0])
    pairs = ((piece, data) if side == 0 else (data, piece) for piece in pieces)
    return [eval_eqn(dot, pair)[0] for pair in pairs]
