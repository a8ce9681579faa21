"""The naive step under `jax.lax.scan`: what everybody writes today."""

import jax

from benchmarks import steps
from benchmarks.contenders._base import Contender, JaxRunner, Model, to_compute_dtype


def naive(problem, scan):
    """The model that runs the naive step of a problem under the given `scan`."""
    apply = steps.unrolled(problem.case.cell, scan)
    dtype = problem.case.dtype
    return Model(
        params=problem.weights,
        apply=lambda params, xs: apply(to_compute_dtype(params, dtype), xs),
        export=dict,
    )


CONTENDERS = [
    Contender(
        name="lax_scan",
        supports=lambda case: None,
        setup=lambda problem: JaxRunner(problem, naive(problem, jax.lax.scan)),
        model=lambda problem: naive(problem, jax.lax.scan),
    )
]
