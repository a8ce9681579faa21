"""The residual connection round a cell."""

import dataclasses

import jax.numpy as jnp

from scanrnn.cells._cell import Cell


@dataclasses.dataclass(frozen=True)
class _Residual(Cell):
    inner: Cell

    @property
    def dtype(self):
        return self.inner.dtype

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        if in_features != hidden_features:
            raise ValueError(
                f"residual: in_features={in_features!r} and hidden_features="
                f"{hidden_features!r} must be equal, because x is added to the output; "
                "project x to hidden_features first"
            )
        return self.inner.init(key, in_features, hidden_features, dtype, **initializers)

    def step(self, params, carry, x):
        carry, y = self.inner.step(params, carry, x)
        if x.shape != y.shape:
            raise ValueError(
                f"residual: x has shape {x.shape} and the cell's output {y.shape}, "
                "they must be equal, because they are added"
            )
        return carry, x.astype(y.dtype) + y

    def initial_carry(self, params, x, dtype=None):
        return self.inner.initial_carry(params, x, dtype)


def residual(cell: Cell) -> Cell:
    r"""Add the input of a cell to its output.

    .. math::
        y_t = x_t + \mathrm{cell}(x_t)

    The carry is the inner cell's own: what is added is not carried to the next step.

    Args:
        cell: the inner cell. Its in_features and hidden_features must be equal.

    Returns:
        A `Cell` with the params and the carry of `cell`.

    Raises:
        TypeError: if `cell` is not a `Cell`.
        ValueError: from `init` and `step`, if the sizes differ.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.residual(scanrnn.cells.lstm())
        >>> params = cell.init(jax.random.key(0), in_features=4, hidden_features=4)
        >>> x = jnp.ones([2, 4])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> bool((y == x + carry.h).all())
        True

    Reference:
        Prakash et al., "Neural paraphrase generation with stacked residual LSTM
        networks", 2016, arXiv:1610.03098.
    """
    if not isinstance(cell, Cell):
        raise TypeError(
            f"residual: cell must be a scanrnn.cells.Cell, got {type(cell).__name__}; "
            "make one with scanrnn.cells.lstm() or its like"
        )
    return _Residual(cell)
