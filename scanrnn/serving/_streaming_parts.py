"""Parts of `Streaming`: one thread at a time, outputs of any tree, fresh carries."""

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


def started(starts: Any, fresh: Any, carry: Any) -> Any:
    """The carries: a fresh one for each stream that starts, else the old one."""

    def one(new, old):
        return jnp.where(jnp.expand_dims(starts, range(1, old.ndim)), new, old)

    return jax.tree.map(one, fresh, carry)
