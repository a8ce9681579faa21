"""The products of a plan as programs, each in the form in which the plan runs it.

Products of a loop run in a loop, step by step, with the batch first or with the
features first as the plan says. All others run at once. Nothing else runs.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.cases import TOLERANCES
from benchmarks.gate import Verdict
from scanrnn.planner import Plan
from scanrnn.planner.gemms import Gemm
from scanrnn.planner.ir.gemm import gemm_p

# The names of the phases in results, and the names in a plan.
PHASES = {
    "forward": "forward",
    "activations": "activation gradient",
    "weights": "weight gradient",
}
# The loop of a plan in which the products of a phase run.
LOOPS = {"forward": "that records", "activations": "in reverse"}


def rows(plan: Plan, phase: str) -> list[Gemm]:
    """The products of a phase, without what is recomputed."""
    wanted = PHASES[phase]
    return [r for r in plan.gemms if r.phase == wanted and r.where != "recomputed"]


def flops(plan: Plan, phase: str) -> int:
    """Operations of all products of a phase."""
    return sum(row.flops for row in rows(plan, phase))


def ready(plan: Plan) -> tuple[SimpleNamespace, Verdict]:
    """A function for each phase, which runs its products, and the gate's verdict.

    Raises:
      ValueError: if the plan cuts the sequence into chunks.
    """
    if plan.chunk:
        raise ValueError(
            f"plan: expected one that runs all {plan.length} steps at once, came chunks"
            f" of {plan.chunk}; take a smaller size"
        )
    calls = {
        phase: [_call(plan, phase, row) for row in rows(plan, phase)]
        for phase in PHASES
    }
    errors = {phase: max(error for _, error in pairs) for phase, pairs in calls.items()}
    where = max(errors, key=lambda phase: errors[phase])
    passed = bool(errors[where] <= TOLERANCES["float32"])
    functions = {
        phase: functools.partial(_run, [call for call, _ in pairs])
        for phase, pairs in calls.items()
    }
    return SimpleNamespace(**functions), Verdict(passed, errors[where], where)


def _run(calls):
    for call in calls:
        call()


def _call(plan, phase, row: Gemm) -> tuple[Callable, float]:
    """A call that runs one product as often as the plan does, and its error."""
    if row.where == "loop":
        turned = bool(plan.bodies[LOOPS[phase]].transposed)
        function, shapes = _in_loop(row, turned), ((row.N, row.K), (row.K, row.M))
    else:
        function, shapes = _at_once(plan, phase, row)
    rng = np.random.default_rng(0)
    operands = [jnp.asarray(rng.standard_normal(s, np.float32)) for s in shapes]
    compiled = jax.jit(function).lower(*operands).compile()
    error = _error(compiled(*operands), phase, operands)
    return lambda: jax.block_until_ready(compiled(*operands)), error


def _at_once(plan, phase, row):
    """The product over all steps, with a time axis where the plan has one."""
    S, numbers = (
        plan.length,
        {
            "forward": (((2,), (0,)), ((), ())),
            "activations": (((2,), (1,)), ((), ())),
            "weights": (((0, 1), (0, 1)), ((), ())),
        },
    )
    function = functools.partial(
        gemm_p.bind,
        dimension_numbers=numbers[phase],
        precision=None,
        preferred_element_type=jnp.dtype("float32"),
    )
    if phase == "weights":
        return function, ((S, row.K // S, row.M), (S, row.K // S, row.N))
    matrix = (row.K, row.M) if phase == "forward" else (row.M, row.K)
    return function, ((S, row.N // S, row.K), matrix)


def _in_loop(row, turned):
    """`data @ matrix`, `row.count` times; each time needs the result before it."""

    def run(data, matrix):
        # The plan transposes a matrix once, before the loop.
        left = lax.optimization_barrier(matrix.T) if turned else None

        def step(_, carry):
            data, _ = carry
            z = jnp.dot(left, data.T).T if turned else jnp.dot(data, matrix)
            # The data does not change, but XLA does not know that.
            return data.at[0, 0].add(0 * z[0, 0]), z

        z = jnp.zeros((row.N, row.M), jnp.float32)
        return lax.fori_loop(0, row.count, step, (data, z))[1]

    return run


def _error(found, phase, operands) -> float:
    """The relative error (2-norm) of a product, against float64."""
    a, b = (np.asarray(v, np.float64) for v in operands)
    a = a.reshape(-1, a.shape[-1])
    if phase == "weights":
        want = a.T @ b.reshape(-1, b.shape[-1])
    elif phase == "activations" and found.ndim == 3:
        want = a @ b.T
    else:
        want = a @ b
    got = np.asarray(found, np.float64).reshape(want.shape)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
