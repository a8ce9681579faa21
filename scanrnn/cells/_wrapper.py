"""The base class of cells that wrap another cell, ours or a user's."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from scanrnn.cells._cell import Cell, Noise, drawn


@dataclasses.dataclass(frozen=True)
class Wrapper(Cell):
    """A cell that wraps another cell, and is like it where it defines nothing else.

    `step` takes the random numbers of the wrapper out of the noise, so that the inner
    cell gets only its own. An inner cell that draws none need not take `noise`.

    Attributes:
        inner: the wrapped cell.
        name: name of the factory, for error messages.
        once: whether the inner cell may not contain a wrapper of the same kind.
    """

    name: ClassVar[str]
    once: ClassVar[bool] = True

    inner: Cell

    def __post_init__(self):
        """Refuse an `inner` that is not a cell, or that contains such a wrapper."""
        if not isinstance(self.inner, Cell):
            raise TypeError(
                f"{self.name}: cell must be a scanrnn.cells.Cell, got "
                f"{type(self.inner).__name__}; make one with scanrnn.cells.lstm() or "
                "its like"
            )
        inner = self.inner
        while self.once and isinstance(inner, Wrapper):
            if type(inner) is type(self):
                raise ValueError(
                    f"{self.name}: the cell has a {self.name} already; wrap a cell in "
                    f"{self.name} only once"
                )
            inner = inner.inner

    @property
    def innermost(self) -> Cell:
        """The cell in all wrappers."""
        inner = self.inner
        return inner.innermost if isinstance(inner, Wrapper) else inner

    @property
    def dtype(self):
        """The dtype of the inner cell."""
        return self.inner.dtype

    @property
    def num_feature_axes(self):
        """The number of feature axes of the inner cell."""
        return self.inner.num_feature_axes

    def keeps_output(self):
        """Whether the output is that of the inner cell."""
        return True

    @property
    def emits(self) -> Any:
        """`emits` of the inner cell; None if the wrapper changes the output."""
        return self.inner.emits if self.keeps_output() else None

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        """Draw the parameters; see `Cell.init`."""
        return self.inner.init(key, in_features, hidden_features, dtype, **initializers)

    @property
    def sizes(self):
        """`sizes(params)` of the inner cell, if it has this function."""
        inner: Any = self.inner  # a user's cell need not have it
        sizes = inner.sizes
        return lambda params: sizes(self.inner_params(params))

    def inner_params(self, params):
        """The parameters of the inner cell."""
        return params

    def initial_carry(self, params, x, dtype=None):
        """The carry before the first step; see `Cell.initial_carry`."""
        return self.inner.initial_carry(self.inner_params(params), x, dtype)

    def out_features(self, hidden_features):
        """The size of the outputs; see `Cell.out_features`."""
        return self.inner.out_features(hidden_features)

    def own_noise(self, key, params, xs):
        """The random numbers that only this wrapper needs."""
        del key, params, xs
        return Noise({}, {})

    def noise(self, key, params, xs):
        """The random numbers of the wrapper and the inner cell; see `Cell.noise`."""
        inner_key, own_key = jax.random.split(key)
        own = self.own_noise(own_key, params, xs)
        inner = drawn(self.inner, inner_key, self.inner_params(params), xs)
        inner = inner or Noise({}, {})
        both = Noise(inner.fixed | own.fixed, inner.steps | own.steps)
        return both if both.fixed or both.steps else None


def same_width(where, x, y):
    """Raise ValueError unless input and output have the same shape."""
    if x.shape != y.shape:
        raise ValueError(
            f"{where}: x has shape {x.shape} and the cell's output {y.shape}, "
            "they must be equal, because they are added; project x "
            "first, or make the output as wide"
        )


def same_sizes(where, in_features, out_features):
    """Raise ValueError unless input and output have the same number of features."""
    if in_features != out_features:
        raise ValueError(
            f"{where}: in_features={in_features!r} and the output's features="
            f"{out_features!r} must be equal, because x is added to the output; "
            "project x first"
        )
