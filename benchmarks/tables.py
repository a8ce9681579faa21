"""Markdown tables, as every report writes them."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line for each row."""
    lines = [_line(heads), "|" + "---|" * len(heads), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells):
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
