"""Show a plan as text, short or long, or as HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable

from scanrnn.planner.report.summary import report

_HEAD = ("path", "phase", "M", "N", "K", "count", "where")


def as_text(plan, long: bool) -> str:
    """A plan as text: summary, table and limits; `long` adds the details."""
    found = report(plan)
    parts = [found.summary, _table(plan.gemms), found.limits]
    parts += [found.details] if long else []
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _table(gemms) -> list[str]:
    body = [tuple(map(str, row)) for row in gemms]
    if not body:
        return ["No matrix products."]
    widths = [max(len(row[i]) for row in (_HEAD, *body)) for i in range(len(_HEAD))]

    def line(row):
        cells = [
            v.rjust(w) if 2 <= i <= 5 else v.ljust(w)
            for i, (v, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(_HEAD), line(["-" * w for w in widths]), *map(line, body)]


def as_html(plan) -> str:
    """A plan as HTML, with the same content; the details are folded."""
    found = report(plan)
    title, *summary = found.summary
    rows = "".join(_row(row, "td") for row in plan.gemms)
    table = f"<table>{_row(_HEAD, 'th')}{rows}</table>" if rows else ""
    details = _list(found.details)
    if details:
        details = f"<details><summary>Every decision</summary>{details}</details>"
    return (
        f'<div class="scanrnn-plan"><p><b>{html.escape(title)}</b></p>'
        f"{_list(summary)}{table}{_list(found.limits)}{details}</div>"
    )


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _row(cells: Iterable, tag: str) -> str:
    inside = "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)
    return f"<tr>{inside}</tr>"
