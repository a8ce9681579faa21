"""Checksums of the arrays and notes of a checkpoint."""

import json
import zlib
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
        ValueError: If an array has no elements, or two have the same name.

    Example:
        >>> check_arrays({"w": jnp.ones(0)})
        Traceback (most recent call last):
            ...
        ValueError: state: 'w' has no elements; leave it out
    """
    paths = jax.tree_util.tree_leaves_with_path(state)
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


def of_arrays(tree: Any) -> dict[str, int]:
    """Computes the CRC-32 checksum of every array that this process holds completely.

    Args:
        tree: A pytree of arrays, PRNG keys included.

    Returns:
        The checksum of each array, by the path of the array in the tree.

    Example:
        >>> of_arrays({"w": jnp.zeros(2)})
        {"['w']": 1696784233}
    """
    sums = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
            sums[jax.tree_util.keystr(path)] = zlib.crc32(data.data)
    return sums


def of_notes(notes: dict[str, Any]) -> int:
    """Computes the CRC-32 checksum of a dict, which writing it as JSON does not change.

    Args:
        notes: A dict that JSON can hold.

    Returns:
        The checksum.

    Example:
        >>> of_notes({"a": (1, 2)}) == of_notes({"a": [1, 2]})
        True
    """
    # JSON returns keys as text and tuples as lists.
    text = json.dumps(json.loads(json.dumps(notes)), sort_keys=True)
    return zlib.crc32(text.encode())
