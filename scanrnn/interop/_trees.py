"""Trees of Flax layers: an `RNN` holds a cell, a `Bidirectional` holds two `RNN`s."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_HALVES = {"forward_rnn", "backward_rnn"}


def plain(tree: Any) -> Any:
    """Nested mappings of any type as nested dicts; leaves stay as they are."""
    if isinstance(tree, Mapping):
        return {name: plain(value) for name, value in tree.items()}
    return tree


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves by path, such as "hf/kernel"."""
    leaves = {}
    for name, value in tree.items():
        below = flat(value) if isinstance(value, Mapping) else {"": value}
        leaves |= {f"{name}/{path}".rstrip("/"): one for path, one in below.items()}
    return leaves


def directions(tree: Any, is_cell: Callable[[dict], bool], where: str) -> list[dict]:
    """The trees of the cells of one layer: one, or forward and backward.

    Args:
        tree: the tree of a cell, of an `RNN` or of a `Bidirectional`; or a pair of
            trees.
        is_cell: tells whether a dict is the tree of a cell.
        where: name of the public function, for the message.

    Raises:
        ValueError: for another tree.
    """
    if isinstance(tree, list | tuple):
        return [one for half in tree for one in directions(half, is_cell, where)]
    if isinstance(tree, Mapping):
        tree = plain(tree)
        if is_cell(tree):
            return [tree]
        if set(tree) == _HALVES:
            halves = [tree["forward_rnn"], tree["backward_rnn"]]
            return directions(halves, is_cell, where)
        if len(tree) == 1 and not set(tree) & _HALVES:
            return directions(next(iter(tree.values())), is_cell, where)
    names = sorted(tree) if isinstance(tree, Mapping) else type(tree).__name__
    raise ValueError(
        f"{where}: got {names}, want the parameters of one recurrent cell, of an RNN, "
        "of a Bidirectional, a pair of them, or a list of layers"
    )


def layer(cells: Sequence[dict]) -> dict:
    """The tree of an `RNN`, or of a `Bidirectional`."""
    if len(cells) == 1:
        return {"cell": cells[0]}
    names = "forward_rnn", "backward_rnn"
    return {name: {"cell": cell} for name, cell in zip(names, cells, strict=True)}


def one_kind(read: Sequence[Sequence[Any]], kind_of: Callable, where: str) -> str:
    """The one kind of all cells, which are given by layer and direction.

    Raises:
        ValueError: if the cells are of several kinds.
    """
    kinds = {kind_of(cell) for cells in read for cell in cells}
    if len(kinds) != 1:
        raise ValueError(
            f"{where}: the cells are {sorted(kinds)}, want one kind; "
            "convert each kind by itself"
        )
    return kinds.pop()
