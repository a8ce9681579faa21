"""Each loop as one kernel for a TPU: weights and carry stay in its fast memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Var

from scanrnn.executors import _kernel
from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body
from scanrnn.planner.cuts import cut
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import MB, Rules

NAME = "pallas_tpu"

RULES = Rules(
    transposes_weights=True,
    packs_statistics=False,
    sums_biases_by_products=True,
    recomputes="always",
    chunk_share=0.4,
    outside_bytes=1024 * MB,
    tile=(128, 8, 128),
)


def rules(machine: Machine) -> Rules:
    return RULES


def refuse(plan: Plan) -> str | None:
    if plan.nothing is not None:
        return plan.nothing
    return None


def lower(
    body: Body, constants: Mapping[Var, Any], carry: list, known: Mapping[Var, Any]
) -> tuple[list, list]:
    params = pltpu.CompilerParams(
        dimension_semantics=("arbitrary",), vmem_limit_bytes=120 * MB
    )
    steps = cut(body.rows.length, STEPS)
    return _kernel.run(body, constants, carry, known, steps, INTERPRET, params)

STEPS = 1
INTERPRET = True
