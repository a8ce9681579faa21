"""Forward-mode rules for single equations that recompute little.

`jax.jvp` evaluates an equation again to differentiate it. In a reverse loop this would
cost a GEMM or an activation function per step. So the rules here use what the forward
loop saved instead. They also take less time to trace. A tangent that is always zero is
None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, primitives

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.batching import REFUSALS
from scanrnn.planner.ir.contractions import dot_in_pieces
from scanrnn.planner.ir.functions import of_some
from scanrnn.planner.ir.gemm import gemm
from scanrnn.planner.ir.graph import Env, eval_eqn, struct

# The derivatives of these primitives look for the elements of an operand that equal
# the output. A saved output may differ by rounding from an operand that is computed
# again. Then no element would be equal.
_COMPARED = {"max", "min", "reduce_max", "reduce_min", "cummax", "cummin"}
# XLA computes these by windows, on a CPU in quadratic time. Their derivatives are those
# of a scan with an associative operation, which takes less time.
_SCANNED = {"cumlogsumexp"}


def push(
    eqn: JaxprEqn,
    tangents: Sequence[Any],
    primal: Callable,
    output: Callable,
    transposed: Callable,
) -> list:
    """Tangents of an equation's outputs, given those of its operands; None for zero.

    Three functions give values that a rule needs: `primal` that of an operand, `output`
    the saved one of an output, and `transposed` the transpose of a weight matrix. The
    last two give None if there is none.
    """
    name = eqn.primitive.name
    tangents = [
        t if t is None or ops.is_inexact(a) else None
        for a, t in zip(eqn.invars, tangents, strict=True)
    ]
    if not moves(eqn, [t is not None for t in tangents]):
        return [None] * len(eqn.outvars)
    if name == "pad" and tangents[0] is None:
        return [_push_padding(eqn, tangents[1])]
    if name == "dot_general":
        return [_push_dot(eqn, tangents, primal, transposed)]
    if name in ops.LINEAR and all(t is not None for t in tangents):
        return eval_eqn(eqn, tangents)
    if name in ops.ADDITIVE and _of_one_shape(eqn):
        term = next(t for t in tangents if t is not None)
        return [lax.neg(term) if name == "sub" and tangents[0] is None else term]
    if name == "mul":
        return [_push_mul(eqn, tangents, primal)]
    if name == "div" and tangents[1] is None:
        return eval_eqn(eqn, (tangents[0], primal(eqn.invars[1])))
    if name in ops.FROM_OUTPUT and output(eqn.outvars[0]) is not None:
        return [lax.mul(tangents[0], ops.FROM_OUTPUT[name](output(eqn.outvars[0])))]
    return _push_general(eqn, tangents, primal, output)


def push_in_pieces(
    dot: JaxprEqn, split: JaxprEqn, tangents: Sequence, primal: Callable
) -> list:
    """Tangents of `split(h @ U)`, given that of `U` alone: one GEMM for each piece."""
    side = 0 if tangents[0] is not None else 1
    if tangents[side] is None:
        return [None] * len(split.outvars)
    data = primal(dot.invars[1 - side])
    sizes = split.params["sizes"]
    return dot_in_pieces(dot, side, sizes, tangents[side], data)


def differentiated(eqn: JaxprEqn) -> JaxprEqn:
    """An equation as JAX evaluates it in a derivative.

    For a function with a `jax.custom_jvp` this is the value that its rule returns
    beside the tangent. A second derivative differentiates this value, not the function.
    If the rule raises an error, it will do so again when something is differentiated.
    """
    custom = eqn.primitive is primitives.custom_jvp_call_p
    if not custom and eqn.primitive.name not in _SCANNED:
        return eqn

    def value(*primals):
        f, zeros = functools.partial(eval_eqn, eqn), map(_zero_tangent, primals)
        return jax.jvp(lambda *p: f(p), primals, tuple(zeros))[0]

    try:
        closed = jax.make_jaxpr(value)(*map(struct, eqn.invars))
    except REFUSALS:
        return eqn
    return compat.calling(eqn, closed)


def _zero_tangent(value):
    if ops.is_inexact_dtype(value.dtype):
        return ops.zeros(jax.typeof(value))
    return np.zeros(value.shape, jax.dtypes.float0)


def moves(eqn: JaxprEqn, nonzero: Sequence[bool]) -> bool:
    """Whether any output can have a tangent, given which operands do."""
    if eqn.primitive.name == "stop_gradient":
        return False
    differentiable = any(ops.is_inexact(v) for v in eqn.outvars)
    return differentiable and any(
        n and ops.is_inexact(a) for a, n in zip(eqn.invars, nonzero, strict=True)
    )


def total(a, b):
    """The sum of two tangents, either of which may be None."""
    if a is None or b is None:
        return b if a is None else a
    return lax.add(a, b)


def pushed(f: Callable, primals: Sequence, tangents: Sequence) -> tuple:
    """Outputs and tangents of `f` by `jax.jvp`; a tangent may be None for zero."""
    at = [i for i, t in enumerate(tangents) if t is not None]
    some = [primals[i] for i in at], [tangents[i] for i in at]
    return jax.jvp(of_some(f, primals, at), *some)


def derivative_of(eqn) -> Any:
    """The derivative of an equation as a program; None if JAX has no derivative."""
    values = list(map(struct, eqn.invars))
    tangents = [a if ops.is_inexact_dtype(a.dtype) else None for a in values]

    def run(*values):
        return eval_eqn(eqn, values)

    try:
        return jax.make_jaxpr(functools.partial(pushed, run))(values, tangents)
    except REFUSALS:
        return None


def _push_padding(eqn, t):
    """The tangent of a pad by its padding value; JAX cannot transpose that alone."""
    operand, value = eqn.invars
    one = jnp.ones((), ops.aval(value).dtype)
    (around,) = eval_eqn(eqn, [ops.zeros(ops.aval(operand)), one])
    return jnp.multiply(t, around)


def _of_one_shape(eqn) -> bool:
    """Whether no operand is broadcast, as some rewritten sums are."""
    return len({ops.aval(a).shape for a in (*eqn.invars, *eqn.outvars)}) == 1


def _push_mul(eqn, tangents, primal):
    (x, y), (dx, dy) = eqn.invars, tangents
    left = None if dx is None else eval_eqn(eqn, (dx, primal(y)))[0]
    right = None if dy is None else eval_eqn(eqn, (primal(x), dy))[0]
    return total(left, right)


def _push_dot(eqn, tangents, primal, transposed):
    out = None
    for i, t in enumerate(tangents):
        if t is not None:
            other = eqn.invars[1 - i]
            matrix = None if ops.is_literal(other) else transposed(other)
            params = eqn.params if matrix is None else _transposed_params(eqn, 1 - i)
            value = primal(other) if matrix is None else matrix
            operands = (t, value) if i == 0 else (value, t)
            half = all(v.dtype == jnp.bfloat16 for v in operands)
            dot = gemm if half else functools.partial(_dot, eqn)
            out = total(out, dot(params, *operands))
    return out


def _dot(eqn, params, *operands):
    return eval_eqn(eqn, operands, params)[0]


def _transposed_params(dot, side) -> dict:
    """Parameters of a dot whose matrix on `side` is given transposed.

    A reverse loop runs the transpose of that dot. It then reads the matrix row by row,
    as GEMM libraries prefer. Otherwise they would pack the matrix again at every step.
    """
    (contract, batch) = dot.params["dimension_numbers"]
    contract = list(contract)
    contract[side] = (1 - contract[side][0],)
    return dot.params | {"dimension_numbers": (tuple(contract), batch)}


def _push_general(eqn, tangents, primal, output):
    compared = eqn.primitive.name in _COMPARED
    saved = [None if compared else output(v) for v in eqn.outvars]
    outs = _pushed_given(eqn, list(map(primal, eqn.invars)), tangents, saved)
    # Integers have no tangents.
    pairs = zip(eqn.outvars, outs, strict=True)
    return [t if ops.is_inexact(v) else None for v, t in pairs]


def _pushed_given(eqn, primals, tangents, saved) -> list:
    """Tangents of the outputs by `jax.jvp`; some outputs are given, others are None.

    Many rules read an output: those of `logaddexp`, of a factor of a matrix. They would
    compute it again.
    """

    def f(*args):
        return eval_eqn(eqn, args)

    if all(value is None for value in saved):
        return pushed(f, primals, tangents)[1]
    closed = jax.make_jaxpr(functools.partial(pushed, f))(primals, tangents)
    jaxpr, n = closed.jaxpr, len(saved)
    values = [*closed.consts, *jax.tree.leaves((primals, tangents))]
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    for outs in _same_outputs(eqn, jaxpr):
        for v, value in zip(outs, saved, strict=True):
            if value is not None and not ops.is_literal(v):
                known.setdefault(v, value)
    return Env(jaxpr.eqns, known).read_all(jaxpr.outvars[n:])


def _same_outputs(eqn, jaxpr) -> list:
    """The values in the derivative of an equation that are the equation's outputs.

    For a function with a `jax.custom_jvp` these are the values beside the tangents; see
    `differentiated`. Other rules may change them: that of a Cholesky factor sets one
    triangle to zero. There they are the outputs of the same equation.
    """
    ins, count = jaxpr.invars[: len(eqn.invars)], len(eqn.outvars)
    if eqn.primitive is primitives.custom_jvp_call_p:
        return [jaxpr.outvars[:count]]
    alike = (e for e in jaxpr.eqns if e.primitive is eqn.primitive)
    return [e.outvars for e in alike if e.invars == ins and e.params == eqn.params]
