"""Run each loop as one kernel for a TPU: weights and carry stay in its fast memory.

These kernels have never run on a TPU. Pallas's interpreter runs them in tests, and the
TPU's compiler compiles them. So they run only if asked for by name, or if `tune` has
checked them on the device. On a CPU they run in the interpreter, for tests.
"""

from __future__ import annotations

from scanrnn.executors.kernels import kernel
from scanrnn.executors.kernels.checks import (
    refusal,
    too_large,
    unlowered,
    unsuitable,
)
from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.ir.graph import Values
from scanrnn.planner.plan import Plan
from scanrnn.planner.rule_groups import MB, CostRules, RecomputeRules
from scanrnn.planner.rules import Rules

NAME = "pallas_tpu"
PLATFORM = "tpu"
# Where the weights are while the steps run, in words.
WEIGHTS = "weights and carry stay in fast memory for all steps"

RULES = Rules(
    # Temporaries of a training step by chunks of a gated delta rule (64 chunks, 128
    # states of 128 x 128): 1,892 MB instead of 2,429.
    overwrites=True,
    # A kernel reads no keys.
    draws_before=True,
    # Otherwise each step would transpose the matrix again.
    transposes_weights=True,
    # Sums of columns are two to seven times slower than products on the matrix units.
    sums_biases_by_products=True,
    # A kernel computes equation after equation. A reverse step of an LSTM with layer
    # norms takes 1,181 bundles instead of 1,229 (32, 512), 5,879 instead of 5,934 (64,
    # 1024).
    small_factors_first=True,
    # Results of products are recomputed for a chunk at once, which is fast. If they
    # were kept, they would be the largest array of a training step. As for XLA's loops,
    # what is recomputed for a chunk stays in fast memory.
    recompute=RecomputeRules("always", share=0.4),
    # As for XLA's loops: a choice, not measured for kernels.
    outside_bytes=1024 * MB,
    # For norms of time inputs: in the loop they take as long as a product. A reverse
    # step (16, 768) of an MI-LSTM takes 1,071 bundles instead of 1,450, that of an LSTM
    # with layer norms 1,704 instead of 2,212.
    precomputes_sums=True,
    # The matrix units are 128 by 128, and a register has 8 rows, as for XLA's loops.
    # What the kernels take was never timed on a TPU.
    costs=CostRules(tile=(128, 8, 128)),
)


def rules(machine: Machine) -> Rules:
    """The same rules on every machine: the interpreter shows what a TPU would run."""
    del machine
    return RULES


def holds(plan: Plan) -> str | None:
    """Why fast memory cannot hold what this plan keeps there, or None."""
    return refusal(plan, PLATFORM, "a TPU", [unsuitable, too_large])


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    checks = [unsuitable, too_large]
    checks += [unlowered] if plan.machine.platform == PLATFORM else []
    return refusal(plan, PLATFORM, "a TPU", checks)


def lower(body: Body, constants: Values, carry: list, arrays: Values) -> Results:
    """Run a body as one kernel. Returns the final carry and the stacked ys."""
    assert body.machine is not None
    interpret = body.machine.platform == "cpu"
    return kernel.run(body, constants, carry, arrays, interpret)
