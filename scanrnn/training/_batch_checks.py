"""Checks of the arguments and positions of iterators over batches."""

import math
import operator
from typing import Any


def check_starts(starts: Any, size: int) -> None:
    """Raises an error unless it is an array of booleans, one for each token, or None.

    Args:
        starts: Where documents start.
        size: Number of tokens.

    Raises:
        TypeError: If it is not of booleans.
        ValueError: If it has another shape.
    """
    if starts is None:
        return
    if starts.dtype != bool:
        raise TypeError(
            f"starts: got an array of {starts.dtype}, want one of booleans, True where "
            "a document starts; for zeros and ones give starts.astype(bool)"
        )
    if starts.shape != (size,):
        raise ValueError(
            f"starts: got the shape {starts.shape}, want ({size},): a boolean for each "
            "of the ids"
        )


def check_rows(rows: tuple[int, int] | None, batch: int) -> tuple[int, int]:
    """Raises ValueError unless a batch has these rows.

    Args:
        rows: The first row, and one more than the last; None for all.
        batch: Number of rows of a batch.

    Returns:
        The first row, and one more than the last.
    """
    first, last = rows or (0, batch)
    if not 0 <= first < last <= batch:
        raise ValueError(
            f"rows: got {(first, last)}, want (first, last + 1) of one row or more in "
            f"a batch of {batch}, as rows_of_process(mesh, {batch}) gives them"
        )
    return first, last


def check_count(name: str, number: Any, least: int = 1) -> int:
    """Raises ValueError unless a number is an integer that is large enough.

    Args:
        name: The name of the argument.
        number: The number.
        least: The least that is accepted.

    Returns:
        The number, as JSON can hold it: a number of NumPy would not go in.
    """
    if not is_below(number, math.inf) or number < least:
        raise ValueError(f"{name}: got {number!r}, want an integer of at least {least}")
    return operator.index(number)


def check_seed(seed: Any) -> Any:
    """Raises an error unless a seed is an integer of at least 0, or None.

    Args:
        seed: The seed.

    Returns:
        The seed, as JSON can hold it: a number of NumPy would not go in.
    """
    try:
        number = None if seed is None else operator.index(seed)
    except TypeError:
        raise TypeError(
            f"seed: got {seed!r} of type {type(seed).__name__}, want an integer"
        ) from None
    if number is not None and number < 0:
        raise ValueError(f"seed: got {seed}, want an integer of at least 0")
    return number


def check_place(
    state: dict[str, Any], batches: int, seed: int | None, data: str
) -> tuple[int, int]:
    """Raises ValueError unless a state is the place of a batch in an epoch.

    Args:
        state: The state. Without the name "seed", any seed will do.
        batches: How many batches an epoch has.
        seed: The seed of the orders.
        data: What the batches are of, for the message.

    Returns:
        The epoch and the batch.
    """
    sizes = {"epoch": math.inf, "batch": batches}
    if not all(is_below(state.get(name), size) for name, size in sizes.items()):
        raise ValueError(
            f"state: got {state}, want an 'epoch' from 0 on, and a 'batch' from 0 to "
            f"{batches - 1}; give what state() returned, and the {data} of the run "
            "that saved it"
        )
    if state.get("seed", seed) != seed:
        raise ValueError(
            f"state: got {state}, but the order is that of seed={seed!r} here; give "
            "the seed of the run that saved it, or remove 'seed' from the state"
        )
    return operator.index(state["epoch"]), operator.index(state["batch"])


def is_below(number: Any, size: float) -> bool:
    """Whether it is an index of a sequence of that size, counted from its start.

    Args:
        number: The number, or something else.
        size: The size.
    """
    try:
        return 0 <= operator.index(number) < size
    except TypeError:
        return False
