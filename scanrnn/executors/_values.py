"""Run a sequence for its values alone: in chunks, of which nothing is kept.

A gradient reads again what was computed before the loop. Without one that is memory
for nothing, so the same is done for a few steps at a time. What is differentiated is
the program for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from scanrnn.executors._chunks import in_chunks
from scanrnn.executors._ruled import Ruled
from scanrnn.planner import ops
from scanrnn.planner.graph import Env, opened, struct_of, variables
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
        again, made = _prepared(some[0], weights, carry, xs, size)
        rest = [lambda _, *args, run=run: run(weights, *args) for run in some[1:]]
        sizes = plan.length, size
        return in_chunks([again, *rest], sizes, plan.reverse, made, carry, xs)

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


def _prepared(run, weights, carry, xs, size: int) -> tuple[Callable, list]:
    """`run` as a function of what it makes of weights, and that, made once.

    XLA would join the kernels of gates, say, for each chunk anew.
    """
    rows = [struct_of(jax.typeof(x)) for x in xs]
    rows = [row.update(shape=(size, *row.shape[1:])) for row in rows]
    closed, shape = jax.make_jaxpr(run, return_shape=True)(weights, carry, rows)
    jaxpr, consts = opened(closed)
    ins, n = jaxpr.invars, len(weights)
    given = dict(zip((*ins[:n], *jaxpr.constvars), (*weights, *consts), strict=True))
    fixed, early, late = set(given), [], []
    for eqn in jaxpr.eqns:
        is_fixed = fixed.issuperset(variables(eqn.invars)) and not ops.grows(eqn)
        (early if is_fixed else late).append(eqn)
        fixed.update(eqn.outvars if is_fixed else ())
    made = Env((), given)
    made.run(early)
    read = {v for e in late for v in variables(e.invars)}
    read = [v for v in made if v in {*read, *variables(jaxpr.outvars)}]

    def again(values, carry, xs):
        known = zip((*read, *ins[n:]), (*values, *carry, *xs), strict=True)
        outs = Env(late, known).read_all(jaxpr.outvars)
        return jax.tree.structure(shape).unflatten(outs)

    return again, [made[v] for v in read]
