"""Markdown tables for all reports."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with a line for each row."""
    lines = [_line(heads), "|" + "---|" * len(heads), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells):
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
