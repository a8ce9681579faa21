"""Run a sequence for its values alone, in chunks of which nothing is kept.

A gradient reads again what was computed before the loop. Without a gradient that memory
would be wasted, so the work is done for a few steps at a time. A gradient
differentiates the program for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable

from scanrnn.executors._ruled import Ruled
from scanrnn.machines import Machine


def with_values_by(values: Callable, program: Callable, machine: Machine) -> Callable:
    """A program that runs `values` without a gradient, and `program` with one.

    Both are functions `(weights, carry, xs) -> (carry, ys)` with equal results.
    """

    def either(weights, carry, xs):
        n, m = len(weights), len(weights) + len(carry)

        def flat(run):
            def outs(*args):
                final, ys = run(*map(list, (args[:n], args[n:m], args[m:])))
                return [*final, *ys]

            return outs

        def build(where, alone):
            # Several devices may share the steps, so these are not cut into chunks.
            return flat(values if alone and where == machine else program)

        outs = Ruled(flat(program), build, machine)(*weights, *carry, *xs)
        return outs[: len(carry)], outs[len(carry) :]

    return either
