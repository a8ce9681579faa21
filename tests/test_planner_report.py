"""The text of a plan: short, long, and as HTML."""

import dataclasses
import functools
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from tests.step_table import build


def plan_of(name, **options):
    step, params, init, xs = build(name)
    return scanrnn.plan(functools.partial(step, params), init, xs, **options)


def test_short_plan_is_five_lines_the_table_and_why_not_more():
    plan = plan_of("lstm")
    assert str(plan) == plan.describe()
    summary, table, limits = str(plan).split("\n\n")
    assert len(summary.splitlines()) == 5
    assert summary.splitlines()[2:4] == [
        "Outside the loop, for all steps at once: 1 GEMM before it, no GEMMs after it.",
        "Gradient: 1 GEMM per step in the reverse loop; weight gradients after it, "
        "for all steps at once.",
    ]
    assert len(table.splitlines()) == 2 + len(plan.gemms)
    assert limits.startswith(
        "Why not more: 1 GEMM per step needs the carry of the step before.\nOver time"
    )


def test_gradient_line_counts_weight_gradients_that_stay():
    text = str(plan_of("lstm", defer=False))
    assert "2 GEMMs per step in the reverse loop; weight gradients 1 of these" in text


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


def test_plan_of_lax_scan_has_nothing_more_to_say():
    plan = plan_of("lstm", implementation="scan")
    assert plan.describe(long=True) == str(plan)
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
