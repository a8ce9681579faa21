"""Run loops that are affine in their carry by scans with an associative operation.

T steps then take some 4 log2 T operations one after the other. A loop that is not
affine runs as a loop of XLA.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors import planned, scan
from scanrnn.executors._executor import bound_to_jax
from scanrnn.executors.parallel import all_steps, scans
from scanrnn.executors.run.names import typed
from scanrnn.machines import Machine
from scanrnn.planner import costs
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.emit import NORMS, REVERSE, of_leaves, of_training
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, Values
from scanrnn.planner.parallel import affine, max_plus
from scanrnn.planner.parallel.affine import Group
from scanrnn.planner.parallel.entries import entered
from scanrnn.planner.parallel.obstacles import obstacle
from scanrnn.planner.passes.wide_sums import wide
from scanrnn.planner.plan import Plan
from scanrnn.planner.rule_groups import RecomputeRules
from scanrnn.planner.rules import Rules

NAME = "associative"


def rules(machine: Machine) -> Rules:
    """XLA's rules, but axes keep their order, and convolutions run for all steps.

    Where an estimate may choose it, a plan has chunks only if what is outside the loop
    would take too much memory: each chunk is a scan of its own.
    """
    found = dataclasses.replace(
        planned.rules(machine),
        # A choice: what is found to be affine is described by the axes of the step.
        features_first=None,
        # A choice: a scan needs its operands at all steps anyway.
        convolves_by_step=False,
    )
    if not found.in_parallel:
        return found
    # A scan of a chunk must wait for the one before; what that costs was not measured.
    return dataclasses.replace(found, recompute=RecomputeRules("never"))


def refuse_early(plan: Plan) -> str | None:
    """Why no plan of this step runs here, whatever the rules; or None."""
    if why := bound_to_jax(plan):
        return why
    if not plan.rules.in_parallel and plan.options.implementation != NAME:
        place = f"on a {plan.machine.platform.upper()}"
        return f"{place} a parallel scan holds all carries, and is not always faster"
    return None


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    bodies = plan.emitted
    loops = {name: b for name, b in bodies.items() if not name.startswith(NORMS)}
    able = {name for name, body in loops.items() if runs_in_parallel(body)}
    if not able:
        return "none of its loops is affine in its carry; scanrnn.plan(...) says why"
    if plan.options.implementation == NAME:
        return None
    if all(name.startswith(REVERSE) for name in able):
        if any(g.mixed for g in affine.groups(bodies[REVERSE].graph)):
            return "it is affine only in reverse, where its features are coupled"
    held = work(plan).moved / plan.rules.costs.parallel.passes
    if held > plan.rules.outside_bytes:
        return f"a parallel scan would hold {held / 1e9:.3g} GB, a loop holds one step"
    return None


def work(plan: Plan) -> costs.Work:
    """What a training step's loops take."""
    works = []
    for body in of_training(plan.emitted):
        if runs_in_parallel(body):
            groups = affine.groups(body.graph)
            works += [work_of(body.graph, group, plan) for group in groups]
        else:
            works.append(
                costs.Work(plan.length * costs.launches_of_step(body, plan.rules), 0.0)
            )
    return costs.Work(sum(w.launches for w in works), sum(w.moved for w in works))


def work_of(graph: Graph, group: Group, plan: Plan) -> costs.Work:
    """What some leaves of a loop take, forward or in reverse."""
    length, scan = plan.length, plan.rules.costs.parallel
    if not group.parallel:
        return costs.Work(length, 0.0)
    if group.kind == "constant":
        return costs.Work(0.0, 0.0)
    size = ops.bytes_in(graph.carry[k] for k in group.leaves)
    launches = max(1, length.bit_length() - scan.fused)
    return costs.Work(launches, scan.passes * length * size * (1 + group.size))


def runs_in_parallel(body: Body) -> bool:
    """Whether a body runs in parallel: all its floating-point leaves are affine."""
    return obstacle(body) is None


def lower(body: Body, constants: Values, carry: list, arrays: Values) -> Results:
    """Run a body over all steps: one group of its carry after the other."""
    if not runs_in_parallel(body):
        return planned.lower(body, constants, carry, arrays)
    rows, groups = body.rows, affine.groups(body.graph)
    graph, added = entered(body.graph)
    body = dataclasses.replace(body, graph=graph)
    values = planned.with_transposed(body, constants) | rows.whole(graph.xs, arrays)
    final = list(carry)
    for group in groups:
        starts = [carry[k] for k in group.leaves]
        if group.kind == "sum" and not group.read:
            (k,), (start,) = group.leaves, starts
            final[k] = _total(body, group, start, values)
        elif added.keys().isdisjoint(group.leaves):
            after = _solved(body, group, starts, values)
            for k, start, found in zip(group.leaves, starts, after, strict=True):
                found = lax.convert_element_type(found, start.dtype)
                final[k] = all_steps.record(graph, k, start, found, rows, values)
        else:
            found = _entered(body, group, starts, added, values)
            for k, start, u, end in zip(group.leaves, starts, *found, strict=True):
                final[k] = lax.convert_element_type(end[0], start.dtype)
                values[graph.carry[k]] = lax.convert_element_type(u, start.dtype)
    ys = all_steps.over_time(graph, graph.ys, values, rows.length)
    return typed(final, graph.carry_out), typed(ys, graph.ys)


def _solved(body: Body, group: Group, starts: list, values) -> list:
    """The values of a group of leaves after each step."""
    graph, rows, rules = body.graph, body.rows, body.scans
    if group.kind == "constant":
        outs = [graph.carry_out[k] for k in group.leaves]
        return all_steps.over_time(graph, outs, values, rows.length)
    if not group.parallel:
        return scan.lower(of_leaves(body, group.leaves), values, starts, values)[1]
    if group.kind in max_plus.JOINS:
        made, consts = max_plus.coefficients(graph, *group.leaves)
        a, b, gone = all_steps.stacked(made, values | consts, rows.length)
        a, b, start = map(_wide, (a, b, *starts))
        join = max_plus.JOINS[group.kind]
        return [scans.joined(join, a, b, gone, start, rows, rules)]
    A, b, first = _operands(body, group, starts, values)
    if group.kind == "sum":
        return [scans.sums(b[0], first[0], rows)]
    return _leaves(scans.affine(A, b, first, rows, rules), group, starts)


def _entered(body: Body, group: Group, starts: list, added, values) -> Results:
    """A group of leaves h that enter a step by sums `u = h + d`.

    Returns the sums at all steps, and h after all steps, `[1, ...]`. `added` has d by
    the index of the leaf; it is zero for other leaves.
    """
    graph, rows = body.graph, body.rows
    asked = {k: added[k] for k in group.leaves if k in added}
    part = graph.part(tuple(asked.values()), all_steps.arrays_of(graph, values))
    made = all_steps.stacked(part, values, rows.length)
    made = dict(zip(asked, made, strict=True))
    A, b, first = _operands(body, group, starts, values)
    d, along = [], [i + 1 for i in group.mixed]
    for k, start in zip(group.leaves, starts, strict=True):
        of_leaf = made[k] if k in made else jnp.zeros((1, *start.shape), start.dtype)
        d += [p.astype(b[0].dtype) for p in _apart(of_leaf, along)]
    sums, ends = scans.entered(A, b, d, first, rows, body.scans)
    return _leaves(sums, group, starts), _leaves(ends, group, starts)


def _operands(body: Body, group: Group, starts: list, values) -> tuple:
    """A and b of an affine group and its first values, an array for each number."""
    made, consts = affine.coefficients(body.graph, group)
    found = list(map(_wide, all_steps.stacked(made, values | consts, body.rows.length)))
    parts = [p for s in starts for p in _apart(s, group.mixed)]
    A, b = found[: -len(parts)], found[-len(parts) :]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*b, *parts)
        # Factors stay real where the values are complex.
        real = jnp.finfo(dtype).dtype if jnp.issubdtype(dtype, jnp.inexact) else dtype
        A = [a.astype(jnp.promote_types(a.dtype, real)) for a in A]
    return A, *([p.astype(dtype) for p in of] for of in (b, parts))


def _leaves(parts: list, group: Group, starts: list) -> list:
    """The leaves of a group, of its coupled numbers over time."""
    each = len(parts) // len(starts)
    return [
        _together(parts[i * each : (i + 1) * each], group.mixed, start.shape)
        for i, start in enumerate(starts)
    ]


def _wide(value):
    """The value in the dtype in which its sums are taken."""
    return lax.convert_element_type(value, wide(value.dtype))


def _total(body: Body, group: Group, start, values):
    """The last value of a leaf `h' = h + b`, if nothing reads the other values."""
    made, consts = affine.coefficients(body.graph, group)
    added = _wide(all_steps.stacked(made, values | consts, body.rows.length)[1])
    times = 1 if len(added) == body.rows.length else body.rows.length
    total = _wide(start) + (times * added.sum(0)).astype(added.dtype)
    return lax.convert_element_type(total, start.dtype)


def _apart(value, mixed) -> list:
    """Split a value into its coupled numbers, each an array of its own."""
    shape = [value.shape[i] for i in mixed]
    value = jnp.moveaxis(value, mixed, range(len(mixed)))
    return list(value.reshape(math.prod(shape), *value.shape[len(mixed) :]))


def _together(parts, mixed, shape):
    """Join arrays of all steps, one for each coupled number, to one array."""
    if not mixed:
        return parts[0]
    rest = [d for i, d in enumerate(shape) if i not in mixed]
    parts = [jnp.broadcast_to(p, (p.shape[0], *rest)) for p in parts]
    value = jnp.stack(parts, 1)
    value = value.reshape(len(value), *(shape[i] for i in mixed), *rest)
    return jnp.moveaxis(value, range(1, 1 + len(mixed)), [i + 1 for i in mixed])
