"""Run a sequence for its values alone: in chunks, of which nothing is kept.

A gradient reads again what was computed before the loop. Without one that is memory
for nothing, so the same is done for a few steps at a time. What is differentiated is
the program for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable

from scanrnn.executors._ruled import Ruled
from scanrnn.machines import Machine


def with_values_by(values: Callable, program: Callable, machine: Machine) -> Callable:
    """`program`, its values alone by `values`: functions of weights, carry and xs."""

    def either(weights, carry, xs):
        n, m = len(weights), len(weights) + len(carry)

        def flat(run):
            def outs(*args):
                final, ys = run(*map(list, (args[:n], args[n:m], args[m:])))
                return [*final, *ys]

            return outs

        def build(where, alone):
            # Devices may share the steps: they are not taken apart.
            return flat(values if alone and where == machine else program)

        outs = Ruled(flat(program), build, machine)(*weights, *carry, *xs)
        return outs[: len(carry)], outs[len(carry) :]

    return either
