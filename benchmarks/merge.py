"""Rows measured anew, put in the place of those in the results of the whole suite.

The machine and its limits stay those of the whole run; each new row says of which
commit it is, and when and on which variant of the processor it was measured: the
report repeats that.
"""

import json
import pathlib


def merge(partial: pathlib.Path, results: pathlib.Path) -> None:
    """Replaces rows of `results` by those of the same name in `partial`, adds others.

    Raises:
      ValueError: if they were not measured on the same kind of machine.
    """
    new, whole = (json.loads(path.read_text()) for path in (partial, results))
    cpus = [found["machine_info"]["cpu"] for found in (new, whole)]
    if cpus[0] != cpus[1]:
        raise ValueError(f"{partial} is of {cpus[0]}, {results} of {cpus[1]}")
    rows = {row["fullname"]: row for row in whole["benchmarks"]}
    for row in new["benchmarks"]:
        row["extra_info"]["measured"] = {
            "commit": new["commit_info"]["id"][:12],
            "dirty": new["commit_info"].get("dirty", False),
            "date": new["datetime"][:10],
            "matrix_units": new["machine_info"]["matrix_units"],
        }
        rows[row["fullname"]] = row
    whole["benchmarks"] = list(rows.values())
    results.write_text(json.dumps(whole, indent=4))
