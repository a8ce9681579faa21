"""The planner beside itself at an earlier commit."""

import subprocess

import pytest

from benchmarks import before, measure, origin

pytestmark = pytest.mark.usefixtures("in_32_bit")
COMMIT = "0123456"
CASE = {"cell": "lstm", "T": 5, "B": 3, "H": 4}


def _record(ours, theirs, disturbance=0.0):
    """A record with the times of a forward pass; none if both programs are the same."""
    seconds = dict(zip(("scanrnn", f"commit:{COMMIT}"), (ours, theirs), strict=True))
    contenders = {
        name: {"forward": {"median": one, "seconds": [one] * 30}} if one else {}
        for name, one in seconds.items()
    }
    return {"case": CASE, "disturbance": disturbance, "contenders": contenders}


def test_page_says_which_programs_are_slower():
    rows = [_record(1.0, 0.9), _record(0.5, 1.0), _record(0, 0), _record(2, 1, 0.5)]
    about = {"earlier": COMMIT, "earlier_date": "2026-01-02"}
    page = before.page(origin.origin() | about | {"rows": rows})
    assert f"{COMMIT} (2026-01-02)" in page
    assert "Of 6 programs 4 are the same, 1 are" in page and "and 1 are slower" in page
    assert "| same | **1.11 [1.11, 1.11]** | - | 1e+03 |" in page
    assert "| same | 0.50 [0.50, 0.50] |" in page
    assert "| lstm T=5 B=3 H=4 (disturbed) |" in page


def test_every_case_is_compared_once():
    cases = [row.case for row in before.chosen()]
    assert len(cases) == len({*cases}) and len(cases) > 50


@pytest.mark.slow
def test_equal_programs_are_not_timed():
    record = before.measured(before.TINY[0], "scanrnn:planned", seconds=0.0, least=1)
    assert record["contenders"] == {"scanrnn": {}, "scanrnn:planned": {}}


@pytest.mark.slow
def test_an_earlier_commit_runs_beside_this_one():
    if not (origin.ROOT / ".git").exists():
        pytest.skip("no repository")
    call = ["git", "-C", str(origin.ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    race, (entries,) = measure.enter(
        [before.TINY[0]._replace(contenders=(f"commit:{head.strip()}",))], ["train"]
    )
    race.run(0.0, 1)
    (entry,) = entries.values()
    assert entry.runs and len(entry.seconds["train"]) == 1
