"""Where the numbers of a page come from, and where they are kept."""

import datetime
import json
import pathlib
import subprocess
from collections.abc import Callable

from benchmarks import machine

ROOT = pathlib.Path(__file__).parents[1]


def origin() -> dict:
    """The machine with its versions, the commit and the day of this run."""
    return {"machine": machine.describe()} | commit()


def commit() -> dict:
    """The commit, whether there are changes besides, and the day of this run."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "scanrnn", "benchmarks/*.py")),
    }


def date_of(commit: str) -> str:
    """The day of a commit of this repository."""
    return _git("show", "--no-patch", "--format=%cs", commit)


def line(found: dict) -> str:
    """The line of a report that says where its numbers come from."""
    about = found["machine"]
    units = ", ".join(about["matrix_units"]) or "no wide units"
    if about["torch_uses"] != "absent":
        units += f"; torch uses {about['torch_uses']}"
    machine_ = f"Machine: {about['cpu']}, {about['cores']} cores ({units})."
    return f"{machine_} {of_versions(found)} {of_commit(found)}"


def of_versions(found: dict) -> str:
    """The sentence that says of which versions the numbers are."""
    installed = found["machine"]["versions"].items()
    versions = ", ".join(f"{k} {v}" for k, v in installed if v != "absent")
    return f"Versions: {versions}."


def of_commit(found: dict) -> str:
    """The sentence that says of which commit and day the numbers are."""
    dirty = " with local changes" if found["dirty"] else ""
    return f"Commit: {found['commit']}{dirty}, {found['date']}."


def place(name: str, quick: bool = False) -> pathlib.Path:
    """The results file of a page: that of this machine, or one that is not committed.

    Args:
      name: the name of the page.
      quick: whether its sizes are tiny, so that its numbers say nothing.
    """
    if not quick:
        return ROOT / "benchmarks" / "results" / f"{name}-{machine.kind()}.json"
    folder = ROOT / ".benchmarks"
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.json"


def keep(path: pathlib.Path, results: dict, page: Callable[[dict], str]) -> None:
    """Writes the results and their page, and prints the page."""
    path.write_text(json.dumps(results, indent=1) + "\n")
    write_page(path, page)


def write_page(path: pathlib.Path, page: Callable[[dict], str]) -> None:
    """Writes the page of a results file beside it, from the file alone; prints it."""
    text = page(json.loads(path.read_text()))
    path.with_suffix(".md").write_text(text)
    print(text)


def _git(*words):
    call = ["git", "-C", str(ROOT), *words]
    try:
        return subprocess.run(call, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
