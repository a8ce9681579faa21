"""The residual connection around a cell."""

import dataclasses

import jax.numpy as jnp

from scanrnn.cells import _wrapper
from scanrnn.cells._cell import Cell, advance


@dataclasses.dataclass(frozen=True)
class _Residual(_wrapper.Wrapper):
    name = "residual"
    once = False

    def keeps_output(self):
        return False

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        out_features = self.out_features(hidden_features)
        _wrapper.same_sizes(self.name, in_features, out_features)
        return self.inner.init(key, in_features, hidden_features, dtype, **initializers)

    def step(self, params, carry, x, noise=None):
        carry, y = advance(self.inner, params, carry, x, noise)
        _wrapper.same_width(self.name, x, y)
        return carry, x.astype(y.dtype) + y


def residual(cell: Cell) -> Cell:
    r"""Add the input of a cell to its output.

    .. math::
        y_t = x_t + \mathrm{cell}(x_t)

    The carry is that of the inner cell: the sum is not carried to the next step.

    Args:
        cell: the inner cell. It must have as many output features as input features.

    Returns:
        A `Cell` with the params and the carry of `cell`.

    Raises:
        TypeError: if `cell` is not a `Cell`.
        ValueError: from `init` and `step`, if the sizes of input and output differ.

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
    return _Residual(cell)
