"""The multiplicative LSTM, whose recurrent matrix depends on the input."""

import dataclasses
from typing import Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions, split
from scanrnn.cells._lstm import LSTMCarry
from scanrnn.cells._table import Param

DIALECTS = ("krause2017", "krause2016")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MultiplicativeLSTM(GatedCell):
    name = "multiplicative_lstm"
    gates = ("i", "f", "g", "o")
    carry_type = LSTMCarry

    dialect: str = "krause2017"
    forget_bias: float | None = None

    def __post_init__(self):
        super().__post_init__()
        _checks.check_option(self.name, "dialect", self.dialect, DIALECTS)
        self._set_numbers("forget_bias")
        if self.heads != 1:
            raise ValueError(
                f"multiplicative_lstm: heads must be 1, got {self.heads}: each block "
                "of m depends on all of h"
            )

    def gate_biases(self):
        return {"f": self.forget_bias}

    def table(self, in_features, hidden_features):
        D, H = in_features, hidden_features
        table = super().table(D, H)
        table["kernel_m"] = Param((D, H), "kernel")
        table["recurrent_kernel_m"] = Param((H, H), "recurrent_kernel")
        return table | self.normal.memory_table(H)

    def equations(self, p, carry, x, noise):
        m = p.dot(x, "kernel_m") * p.dot(carry.h, "recurrent_kernel_m")
        wx, um = self.products(p, x, m, noise)
        i, f, g, o = split(self.join(p, wx, um), 4)
        if self.dialect == "krause2017":
            g = jnp.tanh(g)
        c = jax.nn.sigmoid(f) * p.wide(carry.c) + jax.nn.sigmoid(i) * g
        c, seen = self.normal.remembered(p, c)
        o = jax.nn.sigmoid(o)
        h = o * jnp.tanh(seen) if self.dialect == "krause2017" else jnp.tanh(o * seen)
        return (h, c), h


def multiplicative_lstm(
    *,
    dialect: str = "krause2017",
    forget_bias: float | None = None,
    **options: Unpack[GateOptions],
) -> Cell:
    r"""The multiplicative LSTM of Krause: an LSTM that sees m instead of h.

    .. math::
        m_t &= (W_{mx} x_t) \odot (W_{mh} h_{t-1}) \\
        i, f, g, o &= \mathrm{split}(W x_t + U m_t + b) \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(c_t)

    So the recurrent matrix depends on x: it is :math:`U \mathrm{diag}(W_{mx} x)
    W_{mh}`. The cost is two matrix products in series in each step. This is dialect
    "krause2017", with the activations of an LSTM. In dialect "krause2016", of the
    paper's first version, g has no activation, and the output gate comes before the
    last tanh:

    .. math::
        c_t = \sigma(f) \odot c_{t-1} + \sigma(i) \odot g, \quad
        h_t = \tanh(\sigma(o) \odot c_t)

    It is not the mLSTM of xLSTM, whose memory is a matrix. In the options, :math:`U
    m_t` takes the place of :math:`U h_{t-1}`: norms apply to :math:`W x` and :math:`U
    m`, and recurrent dropout drops features of m.

    Params: `kernel` `[D, 4H]`, `recurrent_kernel` `[H, 4H]`, `bias` `[4H]`, gates in
    the order i, f, g, o; `kernel_m` `[D, H]` and `recurrent_kernel_m` `[H, H]`, which
    are :math:`W_{mx}` and :math:`W_{mh}`; and those of the options.

    Args:
        dialect: "krause2017" or "krause2016".
        forget_bias: the number that `init` adds to the bias of the forget gate. None is
            the number of the scheme, 1 by default. With norm "fastrnns" or
            ``use_bias=False`` there is no such bias, and `init` refuses a number.
        **options: see `GateOptions`. `heads` must be 1, because every block of m
            depends on all of h.

    Returns:
        A `Cell` whose carry is an `LSTMCarry(h, c)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range, or `heads` is
            not 1; from `init`, if `forget_bias` is a number and there is no such bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.multiplicative_lstm(norm="ba2016")
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.c.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Krause et al., "Multiplicative LSTM for sequence modelling", 2016,
        arXiv:1609.07959.
    """
    return _MultiplicativeLSTM(dialect=dialect, forget_bias=forget_bias, **options)
