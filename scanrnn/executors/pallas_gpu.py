"""Run each loop as one kernel for an NVIDIA GPU.

A step without recurrent products (an average, a return, a gate without a matrix) is one
recurrence for each example and feature: the kernel gives each of them to a thread. If
the state is a matrix, each program has one state, that of one head of one example, or a
part of it. For other steps it gives one example to each program while there are
multiprocessors, else eight; of a step with heads, one head of them. If that is faster,
or if a program cannot run the step, each has a slice of the features, and they exchange
what products read.

All time steps run inside the kernel, so a loop is one launch.

Tests run these kernels in Pallas's interpreter, or by `together` if their programs
exchange, and compile them for an H100. On an H100 and an H200 their results were right
(`benchmarks/results/device-*.md`; slices ran on an H200 only): there they run where the
estimate says that they are faster. (Every GPU of compute capability 9.0 is planned for
as an H100.) On other GPUs they run only if asked for by name, or if `tune` has checked
and timed them on the device. On a CPU they run for tests. JAX 0.12 deprecates Pallas's
way to Triton: it warns when it lowers these kernels, and a later version will not have
it.
"""

from __future__ import annotations

import importlib.util

from scanrnn.executors.gpu import triton
from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.block_kernel import BatchView
from scanrnn.executors.gpu.lane_kernel import LaneView
from scanrnn.executors.gpu.lanes import NotElementwiseError
from scanrnn.executors.gpu.slice_kernel import SliceView
from scanrnn.executors.gpu.state_kernel import StateView
from scanrnn.executors.gpu.states import state_of
from scanrnn.executors.gpu.view import View
from scanrnn.executors.kernels.checks import has_divided_arrays, refusal, unsuitable
from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.costs import Work
from scanrnn.planner.emit import of_training
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.functions import once
from scanrnn.planner.ir.graph import Graph, Values, variables
from scanrnn.planner.plan import Plan
from scanrnn.planner.rule_groups import MB, CostRules, RecomputeRules
from scanrnn.planner.rules import Rules

NAME = "pallas_gpu"
PLATFORM = "cuda"
PROVEN = frozenset({"h100"})
# Where the weights are while the steps run, in words.
WEIGHTS = "the carry and weights stay in registers and fast memory, as many as fit"

RULES = Rules(
    # Triton has no slices: each gate is an array of its own.
    reads_gates_apart=True,
    # A kernel reads no keys.
    draws_before=True,
    # Otherwise each step would transpose the matrix again.
    transposes_weights=True,
    # A program has few registers: the reverse loop of chunks of a delta rule is then as
    # long as the forward one.
    gradients_after=True,
    # As for XLA's loops: an LSTM (4096, 2, 128) takes 21 MB of temporaries, and 48 MB
    # if results of products are kept. Chunks take 141 launches in place of 1.
    recompute=RecomputeRules("chunked"),
    # As for XLA's loops: a choice, not measured for kernels.
    outside_bytes=1024 * MB,
    # For products outside of the loop, which are XLA's: the smallest tiles of cuBLAS
    # and Triton. The steps of kernels have estimates of their own (`View.seconds`).
    costs=CostRules(tile=(64, 16, 16)),
)


def rules(machine: Machine) -> Rules:
    """The same rules on every machine: the interpreter shows what a GPU would run."""
    del machine
    return RULES


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    if importlib.util.find_spec("jax.experimental.pallas.triton") is None:
        return "this version of JAX has no Triton"
    reason = refusal(plan, PLATFORM, "an NVIDIA GPU", [unsuitable, _unlike])
    if reason is None and plan.options.implementation != NAME:
        return _unproven(plan)
    return reason


def work(plan: Plan) -> Work | None:
    """What the loops of a training step take: two kernels, and their steps.

    None if XLA runs the loops.
    """
    if has_divided_arrays(plan):
        return None
    seconds, moved = 0.0, 0.0
    for body in of_training(plan.emitted):
        step, view = _viewed(body)
        rows = *step.graph.xs, *variables(step.graph.ys)
        seconds += plan.length * view.seconds(plan.machine.cores)
        moved += plan.length * ops.bytes_in(rows)
    return Work(2.0, moved, inside=seconds)


def _unlike(body: Body) -> str | None:
    """Why the step of a body is not one that a program can run, or None."""
    try:
        _viewed(body)
    except NotAKernelError as reason:
        return str(reason)
    return None


def _unproven(plan: Plan) -> str | None:
    """Why this plan runs only if asked for by name, or timed by `tune`; or None."""
    views = (_viewed(body)[1] for body in plan.emitted.values())
    if any(isinstance(view, StateView) and view.multiplies for view in views):
        return "its kernels that multiply a state by matrices have not run on a GPU"
    return None


@once
def _viewed(body: Body) -> tuple[triton.Prepared, View]:
    """A body as a kernel runs it, and the view of its step."""
    assert body.machine is not None
    step = triton.prepared(body)
    _check_places(step.graph, body.rows.length)
    try:
        view = view_of(step.graph, body.machine)
    except NotAKernelError:
        if not step.captured:
            raise
        # What is as long as the batch may be an axis of heads.
        step = triton.prepared(body, captures=False)
        view = view_of(step.graph, body.machine)
    if isinstance(view, SliceView):
        view.check_steps(body.rows.length)
    return step, view


def _check_places(graph: Graph, length: int) -> None:
    """Check that Triton can count the elements of all rows.

    It counts them in 32 bits, unless an array has more than 2**32 bytes.

    Raises:
      NotAKernelError: if it cannot.
    """
    for v in (*graph.xs, *variables(graph.ys)):
        count = length * ops.product(ops.aval(v).shape)
        if ops.aval(v).dtype.itemsize == 1 and 2**31 <= count <= 2**32:
            raise NotAKernelError(f"Triton cannot count {count:,} elements of one byte")


def view_of(graph: Graph, machine: Machine) -> View:
    """The view of a step: lanes if it is elementwise, else states, examples or slices.

    Raises:
      NotAKernelError: if it is none of these.
    """
    try:
        return LaneView.of(graph)
    except NotElementwiseError as mixed:
        state = state_of(graph)
        try:
            return StateView.of(graph, state) if state else _blocked(graph, machine)
        except NotAKernelError as reason:
            raise NotAKernelError(f"{mixed}, and {reason}") from reason


def _blocked(graph: Graph, machine: Machine) -> View:
    """The faster of the views of a step with products by matrices.

    Raises:
      NotAKernelError: if there is none.
    """
    found, reasons = [], []
    for kind in (BatchView, SliceView):
        try:
            found.append(kind.of(graph, machine))
        except NotAKernelError as reason:
            reasons.append(str(reason))
    if not found:
        raise NotAKernelError("; ".join(reasons))
    return min(found, key=lambda view: view.seconds(machine.cores))


def lower(body: Body, constants: Values, carry: list, arrays: Values) -> Results:
    """Run a body as one kernel. Returns the final carry and the stacked ys."""
    step, view = _viewed(body)
    return triton.run(body, step, view, constants, carry, arrays)
