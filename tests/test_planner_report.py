"""The text of a plan: short, long, and as HTML."""

import dataclasses
import functools
import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn.planner.ir import ops
from tests.affine_table import LOOPS
from tests.step_table import build


def plan_of(name, **options):
    step, params, init, xs = build(name)
    return scanrnn.plan(functools.partial(step, params), init, xs, **options)


def loops_of(plan):
    """The lines of loops, by the name of the loop."""
    told = (
        line.removeprefix("Loop ").split(": ", 1) for line in str(plan).splitlines()
    )
    return {found[0]: found[1] for found in told if found[0] in plan.bodies}


def test_short_plan_is_the_loops_the_table_and_why_not_more():
    plan = plan_of("lstm")
    assert str(plan) == plan.describe()
    summary, table, limits = str(plan).split("\n\n")
    first = (
        f"Plan: {plan.length} steps, 1 of 2 GEMMs (matrix products) stays in the loop."
    )
    head, estimates, *loops, kept = summary.splitlines()
    assert head == first and estimates.startswith("On cpu, estimates")
    assert [line.split(":")[0] for line in loops] == [f"Loop {k}" for k in plan.bodies]
    assert kept.startswith("Kept for the reverse loop (minimal): ")
    assert len(table.splitlines()) == 2 + len(plan.gemms)
    assert limits.startswith(
        "Why not more: 1 GEMM per step needs the carry of the step before.\nOver time"
    )


@pytest.mark.parametrize("name", ["lstm", "ln_lstm", "gru", "output_head", "pointwise"])
def test_line_of_a_loop_tells_what_its_body_has(name):
    plan = plan_of(name, implementation="planned")
    told = loops_of(plan)
    assert [*told] == [*plan.bodies]
    for loop, body in plan.bodies.items():
        products = sum(map(ops.is_heavy, body.graph.eqns))
        rows = (len(found) for found in (body.graph.xs, body.graph.ys))
        found = re.fullmatch(
            r"(\d+) steps?; a step has (\d+|no) GEMMs?, "
            r"reads (\d+) rows? .*, writes (\d+) rows? .*",
            told[loop],
        )
        assert found, told[loop]
        steps, gemms, *counts = found.groups()
        assert (int(steps), gemms) == (plan.length, str(products or "no"))
        assert [*map(int, counts)] == [*rows]


def test_line_of_a_loop_agrees_with_the_table_of_products():
    plan = plan_of("gru")
    inside = [row for row in plan.gemms if row.where == "loop"]
    for loop, phases in {"for values": 1, "in reverse": 2}.items():
        rows = [r for r in inside if (r.phase == "forward") == (phases == 1)]
        count = sum(r.count for r in rows) // plan.length
        assert f"a step has {count} GEMM" in loops_of(plan)[loop]


def test_loop_that_jax_differentiates_is_the_only_one():
    plan = plan_of("lstm", defer=False)
    (told,) = loops_of(plan).values()
    assert str(plan).count("\nLoop that JAX differentiates: ") == 1
    assert "a step has 1 GEMM" in told


def test_step_without_a_gemm_in_the_loop_says_so():
    cell = scanrnn.cells.indrnn()
    params = cell.init(jax.random.key(0), 64, 64)
    xs = jnp.zeros((9, 4, 64))
    step = functools.partial(cell.step, params)
    plan = scanrnn.plan(step, cell.initial_carry(params, xs[0]), xs)
    assert "Why not more: no GEMM is left in the loop." in str(plan)


@pytest.mark.parametrize("name", ["lstm", "with_cond"])
def test_long_plan_begins_with_the_short_one(name):
    plan = plan_of(name)
    long = plan.describe(long=True)
    assert long.startswith(str(plan))
    assert long.count("\nLoop ") == len(plan.bodies) > 0


def test_plan_tells_the_loops_of_chunks_and_of_the_steps_left_over():
    plan = plan_of("lstm", chunk=3)
    left = plan.length % 3
    assert left
    told, chunks = loops_of(plan), plan.length // 3
    times = f" in each of {chunks} chunks" if chunks > 1 else ""
    for name in ("for values", "that records", "in reverse"):
        assert told[name].startswith(f"3 steps{times};")
        assert told[f"{name}, for the last steps"].startswith(f"{left} step")


def test_long_plan_says_why_an_executor_is_not_possible():
    for name in ("planned", "scan"):
        plan = plan_of("lstm", implementation=name)
        assert "associative" not in str(plan)
        assert "\nNot possible by associative: " in plan.describe(long=True)


def told_over_time(name, **options):
    """What a plan in parallel says of its loops for values and in reverse."""
    _, step, init, xs = LOOPS[name]()
    options = {"implementation": "associative"} | options
    told = loops_of(scanrnn.plan(step, init, xs, **options))
    return [told[loop].split("; ", 2)[2:] for loop in ("for values", "in reverse")]


def test_plan_in_parallel_says_how_each_group_runs_and_why():
    forward, reverse = told_over_time("noise_from_a_key")
    assert forward == [
        "over time: key<fry>[] step by step (sequential: no numbers); "
        "float64[3] by an associative scan (diagonal)."
    ]
    assert reverse == ["over time: float64[3] by an associative scan (diagonal)."]
    forward, _ = told_over_time("rotation")
    assert forward == [
        "over time: float64[3,4] and float64[3,4] by an associative scan "
        "(block: 2 numbers are coupled)."
    ]
    ((told,), _) = told_over_time("bookkeeping")
    assert "int32[] by a cumulative sum (sum)" in told
    assert "float64[3] for all steps at once (constant)" in told
    assert "over time" not in str(
        told_over_time("bookkeeping", implementation="planned")
    )


def test_plan_in_parallel_says_which_loop_runs_step_by_step_and_why():
    """Only the reverse loop of this step is affine."""
    ((forward,), (reverse,)) = told_over_time("gate_that_reads_the_carry")
    assert forward.endswith(
        "step by step, as float64[3] is sequential (logistic of the carry)."
    )
    assert reverse.endswith("by an associative scan (diagonal).")


def test_line_of_a_parallel_loop_says_nothing_of_trips():
    """An H100 unrolls loops; a loop that is parallel over time has no trips."""
    in_turn, parallel = (
        str(plan_of("linear_recurrence", machine="h100", implementation=name))
        for name in ("planned", "associative")
    )
    assert "rows written together" in in_turn
    assert "rows written together" not in parallel and "reuse" not in parallel


def test_plan_says_whether_newtons_method_applies_and_pays():
    def told(name, machine):
        _, step, init, xs = LOOPS[name]()
        options = {"implementation": "associative", "machine": machine}
        return str(scanrnn.plan(step, init, xs, **options))

    applies = "\nNewton's method (scanrnn.solve) applies"
    nonlinear = "gate_that_reads_the_carry"
    assert f"{applies}, but seldom pays on a CPU." in told(nonlinear, "cpu")
    assert f"{applies}: an iteration is an affine scan." in told(nonlinear, "h100")
    assert "Newton" not in told("moving_average", "h100")


def test_equal_leaves_of_the_carry_are_counted():
    def step(carry, x):
        return jax.tree.map(lambda c: 0.9 * c + x, carry), x

    plan = scanrnn.plan(step, [jnp.zeros(4)] * 3, jnp.zeros((9, 4)))
    told = "Over time, by leaf of the carry: 3 float64[4] diagonal."
    assert told in str(plan)


def test_step_without_products_or_inputs_says_so():
    plan = scanrnn.plan(
        lambda h, _: (jnp.tanh(h), h),
        jnp.zeros((2, 4)),
        length=9,
        implementation="planned",
    )
    assert repr(plan) == "<Plan: 9 steps, without GEMMs (matrix products).>"
    told = loops_of(plan)["for values"]
    assert told.startswith("9 steps; a step has no GEMMs, reads no rows, writes 1 row")


def test_plan_of_lax_scan_has_no_decisions():
    plan = plan_of("lstm", implementation="scan")
    assert "Before the loop" not in plan.describe(long=True)
    assert plan.describe().startswith(repr(plan).strip("<>"))


class _Reader(HTMLParser):
    """Collect text, and check that every tag is closed in the right order."""

    def __init__(self):
        super().__init__()
        self.open, self.cells, self.lines = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.cells if self.open[-1] in ("td", "th") else self.lines).append(data)


@pytest.mark.parametrize("options", [{}, {"implementation": "scan"}], ids=str)
def test_notebook_shows_the_same_as_html(options):
    plan = plan_of("lstm", **options)
    reader = _Reader()
    reader.feed(plan._repr_html_())
    assert not reader.open
    summary, table, *rest = plan.describe(long=True).split("\n\n")
    words = "\n".join([summary, *rest]).splitlines()
    assert [line for line in reader.lines if line != "Every decision"] == words
    assert len(reader.cells) == 7 * (1 + len(plan.gemms))
    assert {*" ".join(reader.cells).split()} <= {*table.split()}


def test_html_is_escaped():
    tuning = ("train", "as asked", {"as asked": 1.0}, "/<b>&")
    plan = dataclasses.replace(plan_of("lstm"), tuning=tuning)
    assert "remembered in /<b>&." in str(plan)
    assert "remembered in /&lt;b&gt;&amp;." in plan._repr_html_()


def test_plan_that_leaves_the_derivative_to_jax_says_nothing_of_its_own():
    plan = plan_of("ln_lstm", defer=False)
    assert "Gradients summed in the reverse loop" not in str(plan)
    assert "Weight gradients stay in the reverse loop: Options(defer=False)" in str(
        plan
    )
    assert "Kept per step" not in plan.describe(long=True)
    assert "Kept per step" in plan_of("ln_lstm").describe(long=True)
