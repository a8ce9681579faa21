"""Why the arrays of a checkpoint do not fit a state, in words."""

from typing import Any

import jax
import jax.numpy as jnp


def check_fits(manager: Any, step: int, like: Any) -> None:
    """Raises ValueError unless a checkpoint has the arrays of a state.

    Args:
        manager: Orbax's manager of the checkpoints.
        step: The step of the checkpoint.
        like: The state.
    """
    try:
        saved = manager.item_metadata(step)["state"].tree
    # Of a damaged checkpoint, reading it says what is wrong.
    except Exception:
        return
    if difference := _difference(saved, like):
        raise ValueError(
            f"like: the checkpoint of step {step} in {manager.directory} is of another "
            f"state: {difference}; give the model and the optimizer that it was saved "
            "with"
        )


def _difference(saved, like) -> str | None:
    """The first difference between the arrays that are saved and those wanted."""
    found = _named(saved, lambda leaf: (tuple(leaf.shape), str(leaf.dtype)))
    wanted = _named(like, _type)
    if lacking := sorted(wanted.keys() - found.keys()):
        return f"it has no {lacking[0]}"
    if more := sorted(found.keys() - wanted.keys()):
        return f"it has {more[0]}, which is not wanted"
    for name, (shape, dtype) in wanted.items():
        if found[name] != (shape, dtype):
            have = f"{found[name][1]}{list(found[name][0])}"
            return f"its {name} is {have}, not {dtype}{list(shape)}"
    return None


def _named(tree, type_of):
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): type_of(leaf)
        for path, leaf in pairs
    }


def _type(leaf):
    """Shape and dtype as saved: a PRNG key is saved as integers."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return tuple(leaf.shape), str(leaf.dtype)
