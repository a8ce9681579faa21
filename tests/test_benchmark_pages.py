"""Every page of results is what its code writes from the committed numbers."""

import importlib
import json

import pytest

from benchmarks import before, gains, panels, report, scaling, words
from benchmarks.compiled import gpu_kernels, kernels_page, picture
from benchmarks.compiled import report as compiled
from benchmarks.device import page as device
from benchmarks.gemms import costs, gnmt
from benchmarks.gemms import page as gemms
from benchmarks.parallel import report as parallel


def _suite(path):
    return report.markdown(*report.load(path), path.with_suffix(".png").name)


def _of(page, *more):
    """A page from the content of a results file alone."""
    return lambda path: page(json.loads(path.read_text()), *more)


def _gemms(path):
    return gemms.markdown(json.loads(path.read_text()), path.stem)


def _gnmt(path):
    return gnmt.markdown(costs.load(path), costs.kernels())


def _beside_torch(module, name):
    """A page by a module that imports torch, which is not there for every Python."""

    def made(path):
        pytest.importorskip("torch")
        page = getattr(importlib.import_module(module), name)
        return page(json.loads(path.read_text()))

    return made


# How the page of a results file is made, by how its name starts; the first one counts.
PAGES = {
    "gemms-compiled": _gnmt,
    "gemms-": _gemms,
    "before-": _of(before.page),
    "words-": _of(words.report),
    "scaling-": _of(scaling.report),
    "latency-": _beside_torch("benchmarks.latency", "report"),
    "course-": _beside_torch("benchmarks.course.__main__", "page"),
    "device-": _of(device.markdown),
    "parallel-": _of(parallel.timed),
    "parallel": _of(parallel.compiled),
    "gpu_kernels": _of(gpu_kernels.markdown),
    "kernels": _of(kernels_page.markdown),
    "compiled": _of(compiled.markdown, "compiled.png"),
    "newest-": _suite,
    "amd-": _suite,
    "intel-": _suite,
}
SLOW = "amd-", "intel-"  # some seconds each


def _params():
    for path in sorted(gains.RESULTS.glob("*.md")):
        slow = [pytest.mark.slow] if path.stem.startswith(SLOW) else []
        yield pytest.param(path, id=path.stem, marks=slow)


@pytest.mark.parametrize("path", list(_params()))
def test_page_of_results_is_that_of_its_numbers(path):
    make = next(make for start, make in PAGES.items() if path.stem.startswith(start))
    assert path.read_text() == make(path.with_suffix(".json"))


def test_pages_and_pictures_of_results_have_their_numbers():
    names = {path.stem for path in gains.RESULTS.glob("*.json")}
    assert {path.stem for path in gains.RESULTS.glob("*.md")} == names
    pages = "\n".join(path.read_text() for path in gains.RESULTS.glob("*.md"))
    unshown = {p.name for p in gains.RESULTS.glob("*.png") if p.name not in pages}
    assert unshown == {gains.PICTURE.name}


def test_labels_of_a_picture_do_not_overlap():
    rows = json.loads(gains.COUNTED.read_text())["rows"]
    figure = panels.drawn(picture.panels_of(rows), picture.SIZE)
    figure.canvas.draw()
    for axis in figure.axes:
        low, high = axis.get_xlim()
        ends = [
            label.get_window_extent()
            for at, label in zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)
            if low <= at <= high
        ]
        assert len(ends) > 2
        for left, right in zip(ends, ends[1:], strict=False):
            assert left.x1 < right.x0
