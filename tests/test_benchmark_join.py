"""Parts of the suite are joined to one report, if they may be."""

import copy
import json
import pathlib

import pytest

from benchmarks import join, measure

FIXTURE = pathlib.Path(__file__).parent / "data" / "benchmark_results.json"


def parts():
    """Two parts: the rows of one section, and those that share no size with them."""
    whole = json.loads(FIXTURE.read_text())
    whole["commit_info"]["dirty"] = False
    first = [row for row in whole["rows"] if row["section"] == "forum"]
    sizes = {measure.race_of(row) for row in first}
    second = [row for row in whole["rows"] if measure.race_of(row) not in sizes]
    assert first and second
    return [copy.deepcopy(whole) | {"rows": rows} for rows in (first, second)]


def test_parts_are_joined_in_the_order_of_a_report(tmp_path):
    paths = []
    for i, part in enumerate(parts()):
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(json.dumps(part))
    joined = tmp_path / "joined.json"
    join.main([str(joined), *map(str, paths)])
    rows = json.loads(joined.read_text())["rows"]
    assert len(rows) == sum(len(part["rows"]) for part in parts())
    places = [join._ORDER.index(row["section"]) for row in rows]
    assert places == sorted(places)
    text = joined.with_suffix(".md").read_text()
    assert "## Forum" in text and "## Grid" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part: part["commit_info"].update(dirty=True), "local changes"),
        (lambda part: part["commit_info"].update(id="other"), "several machines"),
        (lambda part: part["machine_info"].update(cpu="other"), "several machines"),
        (lambda part: part.update(rows=parts()[0]["rows"]), "run together"),
    ],
)
def test_parts_that_cannot_be_compared_are_refused(change, message):
    first, second = parts()
    change(second)
    with pytest.raises(ValueError, match=message):
        join.join([first, second])
