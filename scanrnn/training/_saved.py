"""What a checkpoint can hold."""

import json
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_arrays(state: Any) -> None:
    """Refuses a state that Orbax would not write, or of which it would lose a part.

    Args:
        state: A pytree of arrays.

    Raises:
        TypeError: If a leaf is no array of a dtype that JAX knows.
        ValueError: If there is no array, an array has no elements, or two have the same
            name.

    Example:
        >>> check_arrays({"w": jnp.ones(0)})
        Traceback (most recent call last):
            ...
        ValueError: state: 'w' has no elements; leave it out
    """
    paths = jax.tree_util.tree_leaves_with_path(state)
    if not paths:
        raise ValueError("state: got no arrays, want at least one")
    names = [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in paths]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(
            f"state: two arrays have the name {twice[0]!r}, as Orbax joins names by "
            "dots; rename one"
        )
    empty = [n for n, (_, leaf) in zip(names, paths, strict=True) if not np.size(leaf)]
    if empty:
        raise ValueError(f"state: {empty[0]!r} has no elements; leave it out")
    for name, (_, leaf) in zip(names, paths, strict=True):
        try:
            jax.eval_shape(lambda array: array, leaf)
        except TypeError:
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise TypeError(
                f"state: {name!r} is of {kind}, want an array of numbers; put text "
                "into the notes"
            ) from None


def check_notes(notes: Any) -> None:
    """Refuses notes that are no dict, or that JSON cannot hold.

    Args:
        notes: The notes.

    Raises:
        TypeError: If they are.
    """
    if not isinstance(notes, dict):
        raise TypeError(
            f"notes: got a {type(notes).__name__}, want a dict that JSON can hold"
        )
    for name, note in notes.items():
        check_json(f"notes: got {name!r}, which", {name: note})


def check_json(what: str, value: Any) -> None:
    """Refuses what JSON cannot hold.

    Args:
        what: What it is, to start the message.
        value: The value.

    Raises:
        TypeError: If JSON cannot hold it.

    Example:
        >>> check_json("notes: got 'mean', which", jnp.ones(2))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        TypeError: notes: got 'mean', which JSON cannot hold: ...
    """
    try:
        json.dumps(value)
    # A ValueError is for what holds itself.
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{what} JSON cannot hold: {error}; want numbers, text, True, False, None, "
            "lists, and dicts of these; convert arrays and numbers of NumPy by "
            ".tolist()"
        ) from None


def copied(state: Any) -> Any:
    """Copies a state. Arrays of NumPy stay with NumPy.

    Args:
        state: A pytree of arrays, PRNG keys included.

    Returns:
        The copy.
    """
    # Without x64, JAX would make 32 bits of NumPy's 64.
    return jax.tree.map(
        lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else np.array(leaf),
        state,
    )


def as_arrays(like: Any) -> Any:
    """Makes arrays of numbers, as `copied` does: Orbax cannot read a number of NumPy.

    Args:
        like: A pytree of arrays, of numbers, or of what describes an array.

    Returns:
        The pytree of arrays, or of what describes them.
    """
    return jax.tree.map(
        lambda leaf: leaf if hasattr(leaf, "sharding") else np.asarray(leaf), like
    )
