"""Parts of `Streaming`: one thread at a time, trees of arrays, fresh carries."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

Method = TypeVar("Method", bound=Callable)


def alone(method: Method) -> Method:
    """A method during which no other thread is in such a method of the same object."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(Method, run)


def each(f: Callable[[Any], Any], outputs: Any) -> Any:
    """The outputs with each array changed by f. Most cells have a single array."""
    if isinstance(outputs, np.ndarray | jax.Array):
        return f(outputs)
    return jax.tree.map(f, outputs)


def as_one(*pieces: np.ndarray) -> np.ndarray:
    """The pieces of outputs as one array, read-only as NumPy's views of JAX's are."""
    whole = np.concatenate(pieces, axis=1)
    whole.flags.writeable = False
    return whole


def named(carry: Any, open: Any) -> dict[str, Any]:
    """The arrays of a state by name: those of the carry, and which places are taken."""
    leaves = jax.tree_util.tree_flatten_with_path(carry)[0]
    found = {
        "carry." + jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
    }
    return found | {"open": open}


def started(starts: Any, fresh: Any, carry: Any) -> Any:
    """The carries: a fresh one for each stream that starts, else the old one."""

    def one(new, old):
        return jnp.where(jnp.expand_dims(starts, range(1, old.ndim)), new, old)

    return jax.tree.map(one, fresh, carry)
