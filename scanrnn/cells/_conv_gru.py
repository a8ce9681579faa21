"""The convolutional gated recurrent unit, in two dialects."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._conv import ConvCell, ConvOptions
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param, with_biases

DIALECTS = ("ballas2015", "cudnn")


class ConvGRUCarry(NamedTuple):
    """The carry of a convolutional GRU: what it passes from step to step.

    Attributes:
        h: output, `[..., *spatial, F]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ConvGRU(ConvCell):
    name = "conv_gru"
    gates = ("r", "z", "n")
    carry_type = ConvGRUCarry

    dialect: str = "ballas2015"

    def __post_init__(self):
        super().__post_init__()
        _checks.check_option(self.name, "dialect", self.dialect, DIALECTS)

    def keeps(self):
        return {"z": 1.0 if self.dialect == "cudnn" else -1.0}

    def table(self, in_features, hidden_features):
        table = super().table(in_features, hidden_features)
        if self.dialect == "cudnn":
            table["recurrent_bias"] = Param((hidden_features,), "bias", ("n",))
        return with_biases(self.use_bias, table, "recurrent_bias")

    def equations(self, p, carry, x, noise):
        del noise
        h, wx = p.wide(carry.h), p.biased(p.convolve(x, "kernel"))
        gates = self._reset_after if self.dialect == "cudnn" else self._reset_before
        z, n = gates(p, wx, carry.h, h)
        h = (1 - z) * n + z * h if self.dialect == "cudnn" else (1 - z) * h + z * n
        return (h,), h

    def _reset_after(self, p, wx, operand, h):
        two = 2 * h.shape[-1]  # where the candidate begins
        uh = p.convolve(operand, "recurrent_kernel")
        r, z = split(jax.nn.sigmoid(wx[..., :two] + uh[..., :two]), 2)
        uh_n = p.biased(uh[..., two:], "recurrent_bias")
        return z, jnp.tanh(wx[..., two:] + r * uh_n)

    def _reset_before(self, p, wx, operand, h):
        two = 2 * h.shape[-1]
        uh = p.convolve(operand, "recurrent_kernel", slice(None, two))
        r, z = split(jax.nn.sigmoid(wx[..., :two] + uh), 2)
        uh = p.convolve(r * h, "recurrent_kernel", slice(two, None))
        return z, jnp.tanh(wx[..., two:] + uh)


def conv_gru(*, dialect: str = "ballas2015", **options: Unpack[ConvOptions]) -> Cell:
    r"""The gated recurrent unit with convolutions in place of matrix products.

    .. math::
        r &= \sigma(W_r * x_t + U_r * h_{t-1} + b_r) \\
        z &= \sigma(W_z * x_t + U_z * h_{t-1} + b_z) \\
        n &= \tanh(W_n * x_t + U_n * (r \odot h_{t-1}) + b_n) \\
        h_t &= (1 - z) \odot h_{t-1} + z \odot n

    where :math:`*` is a convolution over 1, 2 or 3 spatial axes that keeps their sizes.
    This is dialect "ballas2015", the paper's, with biases. In dialect "cudnn" the reset
    comes after the convolution, and z is the share of h that is kept, as in dialect
    "cudnn" of `gru`: :math:`n = \tanh(W_n * x_t + b_n + r \odot (U_n * h_{t-1} +
    b_{hn}))` and :math:`h_t = (1 - z) \odot n + z \odot h_{t-1}`. So one convolution of
    h serves all gates.

    x is `[..., *spatial, C]`, the carry `[..., *spatial, F]`.

    Params: `kernel` `[*kernel_size, C, 3F]`, `recurrent_kernel` `[*kernel_size, F,
    3F]`, `bias` `[3F]`, gates in the order r, z, n; with "cudnn" also `recurrent_bias`
    `[F]`, which is :math:`b_{hn}`.

    Args:
        dialect: "ballas2015" or "cudnn".
        **options: see `ConvOptions`.

    Returns:
        A `Cell` whose carry is a `ConvGRUCarry(h)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if the dialect is unknown, a size of the window is less than 1, or
            the number of its axes is not 1, 2 or 3; from `step`, if x has too few axes.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.conv_gru(kernel_size=3)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 8, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 8, 5), (2, 8, 5))

    Reference:
        Ballas et al., "Delving deeper into convolutional networks for learning video
        representations", 2015, arXiv:1511.06432.
    """
    return _ConvGRU(dialect=dialect, **options)
