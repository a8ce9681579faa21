"""The naive step under `jax.lax.scan`, as most people write it today."""

import jax

from benchmarks import steps
from benchmarks.contenders._base import Contender, JaxRunner, Model, to_compute_dtype


def naive(problem, scan):
    """The model that runs the naive step of a problem under the given `scan`."""
    case = problem.case
    step_by_step = steps.unrolled(case.cell, scan, case.throughout)

    def apply(params, xs):
        params = to_compute_dtype(params, case.dtype, case.throughout)
        return step_by_step(params, xs.astype(case.dtype) if case.throughout else xs)

    return Model(params=problem.weights, apply=apply, export=dict)


CONTENDERS = [
    Contender(
        name="lax_scan",
        supports=lambda case: None,
        setup=lambda problem: JaxRunner(problem, naive(problem, jax.lax.scan)),
        model=lambda problem: naive(problem, jax.lax.scan),
    )
]
