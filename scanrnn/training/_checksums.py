"""Checksums of what is saved."""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def of_arrays(tree: Any) -> dict[str, int]:
    """Computes the checksum of every array that this process holds whole.

    Args:
        tree: A pytree of arrays, PRNG keys included.

    Returns:
        Checksums by the paths of the arrays.

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
    """Computes the checksum of a dict, which is the same after a turn as JSON.

    Args:
        notes: A dict that JSON can hold.

    Returns:
        The checksum.

    Example:
        >>> of_notes({"a": (1, 2)}) == of_notes({"a": [1, 2]})
        True
    """
    # As JSON gives them back: its keys are text, its tuples are lists.
    text = json.dumps(json.loads(json.dumps(notes)), sort_keys=True)
    return zlib.crc32(text.encode())
