"""Checksums of the arrays and notes of a checkpoint."""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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
        local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        if local or leaf.is_fully_replicated:
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
