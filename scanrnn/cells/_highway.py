"""The highway connection around a cell."""

import dataclasses

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision, _wrapper
from scanrnn.cells._cell import Cell, advance
from scanrnn.cells._weights import Weights


@dataclasses.dataclass(frozen=True)
class _Highway(_wrapper.Wrapper):
    name = "highway"

    carry_bias: float = -1.0

    def __post_init__(self):
        super().__post_init__()
        number = _checks.check_number(self.name, "carry_bias", self.carry_bias)
        object.__setattr__(self, "carry_bias", number)

    def keeps_output(self):
        return False

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        out_features = self.out_features(hidden_features)
        _wrapper.same_sizes(self.name, in_features, out_features)
        key, own_key = jax.random.split(key)
        wide, size = _precision.widest(dtype), (in_features, in_features)
        kernel = jax.nn.initializers.lecun_normal()(own_key, size, wide)
        own = {
            "highway_kernel": kernel.astype(dtype),
            "highway_bias": jnp.full(size[1:], self.carry_bias, dtype),
        }
        inner = self.inner.init(
            key, in_features, hidden_features, dtype, **initializers
        )
        return inner | own

    def inner_params(self, params):
        return {name: value for name, value in params.items() if name not in _NAMES}

    def step(self, params, carry, x, noise=None):
        new, y = advance(self.inner, self.inner_params(params), carry, x, noise)
        _wrapper.same_width(self.name, x, y)
        own = {name: params[name] for name in _NAMES}
        p = Weights(own, y, x, self.dtype, x.ndim - 1)
        t = jax.nn.sigmoid(p.dot(x, "highway_kernel") + p["highway_bias"])
        return new, (t * p.wide(y) + (1 - t) * p.wide(x)).astype(y.dtype)


_NAMES = ("highway_kernel", "highway_bias")


def highway(cell: Cell, carry_bias: float = -1.0) -> Cell:
    r"""Let a gate choose between the output of a cell and its input.

    .. math::
        y_t = t \odot \mathrm{cell}(x_t) + (1 - t) \odot x_t, \quad
        t = \sigma(W_t x_t + b_t)

    The carry is that of the inner cell.

    Params: those of the inner cell, `highway_kernel` `[D, D]` and `highway_bias` `[D]`.

    Args:
        cell: the inner cell. It must have as many output features as input features.
        carry_bias: the starting value of :math:`b_t`. If it is negative, most of x is
            passed on at first.

    Returns:
        A `Cell` with the carry of `cell`.

    Raises:
        TypeError: if `cell` is not a `Cell`, or `carry_bias` is not a number.
        ValueError: if `cell` contains a highway already; from `init` and `step`, if the
            sizes of input and output differ.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.highway(scanrnn.cells.gru())
        >>> params = cell.init(jax.random.key(0), in_features=4, hidden_features=4)
        >>> x = jnp.ones([2, 4])
        >>> cell.step(params, cell.initial_carry(params, x), x)[1].shape
        (2, 4)

    Reference:
        Srivastava et al., "Highway networks", 2015, arXiv:1505.00387.
    """
    return _Highway(cell, carry_bias)
