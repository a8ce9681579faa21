"""Run a sequence for its values alone: in chunks, of which nothing is kept.

A gradient reads again what was computed before the loop. Without one that is memory
for nothing, so the same is done for a few steps at a time. What is differentiated is
the program for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scanrnn.executors._chunks import in_chunks
from scanrnn.executors._ruled import Ruled
from scanrnn.planner.plan import Plan


def with_values_in_chunks(
    plan: Plan, program: Callable, some: Sequence[Callable]
) -> Callable:
    """`program`, its values alone by `some` on `plan.value_chunk` steps at a time.

    All are functions of weights, carry and xs.
    """
    size = plan.value_chunk
    assert size is not None

    def in_turn(weights, carry, xs):
        if size == plan.length:
            return some[0](weights, carry, xs)
        sizes = plan.length, size
        return in_chunks(some, sizes, plan.reverse, weights, carry, xs)

    def either(weights, carry, xs):
        n, m = len(weights), len(weights) + len(carry)

        def flat(run):
            def outs(*args):
                final, ys = run(*map(list, (args[:n], args[n:m], args[m:])))
                return [*final, *ys]

            return outs

        def build(machine, alone):
            # Devices may share the steps: they are not taken apart.
            return flat(in_turn if alone and machine == plan.machine else program)

        outs = Ruled(flat(program), build, plan.machine)(*weights, *carry, *xs)
        return outs[: len(carry)], outs[len(carry) :]

    return either
