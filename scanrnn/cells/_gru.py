"""The gated recurrent unit, in three dialects."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions, split
from scanrnn.cells._table import Param

DIALECTS = ("cudnn", "cho2014", "haiku")


class GRUCarry(NamedTuple):
    """What a GRU carries from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GRU(GatedCell):
    name = "gru"
    carry_type = GRUCarry

    dialect: str = "cudnn"

    def __post_init__(self):
        super().__post_init__()
        _checks.check_option(self.name, "dialect", self.dialect, DIALECTS)
        if self.dialect == "cudnn" and not self.normal.apart:
            raise ValueError(
                f"gru: norm={self.norm!r} normalises W x + U h, but the candidate of "
                "dialect='cudnn' resets U h before it is added; use a norm of the "
                "products such as 'ba2016', or dialect='cho2014'"
            )
        if self.dialect != "cudnn" and not self.normal.per_gate:
            raise ValueError(
                f"gru: norm={self.norm!r} normalises U h over all gates jointly, but "
                f"with dialect={self.dialect!r} the candidate's part is known only "
                "after the others; use a norm per gate such as 'praxis', or "
                "dialect='cudnn'"
            )

    @property
    def gates(self):
        return ("r", "u" if self.dialect == "haiku" else "z", "n")

    def gate_biases(self):
        return {}

    def table(self, in_features, hidden_features):
        table = super().table(in_features, hidden_features)
        if self.dialect == "cudnn" and self.normal.bias:
            table["recurrent_bias"] = Param((hidden_features,), "bias", ("n",))
        return table

    def equations(self, p, carry, x, noise):
        h = p.wide(carry.h)
        if self.dialect == "cudnn":
            r, z, n = self._reset_after(p, carry, x, noise)
        else:
            r, z, n = self._reset_before(p, carry, x, noise)
        if self.dialect == "haiku":
            h = (1 - z) * h + z * n
        else:
            h = (1 - z) * n + z * h
        return (h,), h

    def _reset_after(self, p, carry, x, noise):
        wx, uh = self.products(p, x, carry.h, noise)
        two = 2 * carry.h.shape[-1]  # where the candidate begins
        wx_rz, wx_n = jnp.split(wx, [two], axis=-1)
        uh_rz, uh_n = jnp.split(uh, [two], axis=-1)
        r, z = split(jax.nn.sigmoid(self.join(p, wx_rz, uh_rz, 0, 2)), 2)
        if "recurrent_bias" in p:
            uh_n = uh_n + p["recurrent_bias"]
        return r, z, jnp.tanh(self.join(p, wx_n, r * uh_n, 2))

    def _reset_before(self, p, carry, x, noise):
        wx, two = p.dot(x, "kernel"), 2 * carry.h.shape[-1]
        wx_rz, wx_n = jnp.split(wx, [two], axis=-1)
        uh_rz = self.recurrent(p, carry.h, noise, 0, 2)
        r, z = split(jax.nn.sigmoid(self.join(p, wx_rz, uh_rz, 0, 2)), 2)
        uh_n = self.recurrent(p, r * p.wide(carry.h), noise, 2)
        return r, z, jnp.tanh(self.join(p, wx_n, uh_n, 2))


def gru(*, dialect: str = "cudnn", **options: Unpack[GateOptions]) -> Cell:
    r"""The gated recurrent unit.

    .. math::
        r &= \sigma(W_r x_t + U_r h_{t-1} + b_r) \\
        z &= \sigma(W_z x_t + U_z h_{t-1} + b_z) \\
        n &= \tanh(W_n x_t + b_n + r \odot (U_n h_{t-1} + b_{hn})) \\
        h_t &= (1 - z) \odot n + z \odot h_{t-1}

    That is dialect "cudnn", also PyTorch's, Flax's, Equinox's and Keras's with
    ``reset_after=True``. In the paper's, "cho2014", which is Keras's with
    ``reset_after=False``, the reset comes before the product: :math:`n = \tanh(W_n x_t
    + U_n (r \odot h_{t-1}) + b_n)`. Haiku's, "haiku", is the paper's with z inverted:
    :math:`h_t = (1 - z) \odot h_{t-1} + z \odot n`.

    With multiplicative integration, :math:`r \odot (U_n h + b_{hn})` is in the place of
    :math:`U h` in the candidate of "cudnn": it is what the paper's :math:`U_n (r \odot
    h)` becomes when the reset comes after the GEMM.

    Params: `kernel` `[D, 3H]`, `recurrent_kernel` `[H, 3H]`, `bias` `[3H]`, gates in
    the order r, z, n; with "cudnn" `recurrent_bias` `[H]`, which is :math:`b_{hn}` (for
    r and z a second bias would only add to the first); and those of the options.

    Args:
        dialect: "cudnn", "cho2014" or "haiku".
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is a `GRUCarry(h)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: for an unknown option; for a norm of the sum with "cudnn", and one
            over all gates jointly with the others.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.gru()
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014,
        arXiv:1406.1078.
    """
    return _GRU(dialect=dialect, **options)
