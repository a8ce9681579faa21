"""The update gate recurrent network."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions, split


class UGRNNCarry(NamedTuple):
    """The carry of an update gate RNN: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _UGRNN(GatedCell):
    name = "ugrnn"
    # The paper's g and c. Schemes use the name f for a gate that keeps the carry.
    gates = ("f", "c")
    carry_type = UGRNNCarry

    forget_bias: float | None = None

    def __post_init__(self):
        super().__post_init__()
        self._set_numbers("forget_bias")

    def gate_biases(self):
        return {"f": self.forget_bias}

    def equations(self, p, carry, x, noise):
        wx, uh = self.products(p, x, carry.h, noise)
        g, c = split(self.join(p, wx, uh), 2)
        g = jax.nn.sigmoid(g)
        h = g * p.wide(carry.h) + (1 - g) * jnp.tanh(c)
        return (h,), h


def ugrnn(*, forget_bias: float | None = None, **options: Unpack[GateOptions]) -> Cell:
    r"""The update gate recurrent network: an Elman cell that may keep its carry.

    .. math::
        g &= \sigma(W_g x_t + U_g h_{t-1} + b_g) \\
        c &= \tanh(W_c x_t + U_c h_{t-1} + b_c) \\
        h_t &= g \odot h_{t-1} + (1 - g) \odot c

    Flax's ``MGUCell`` with ``reset_gate=False`` is this cell.

    Params: `kernel` `[D, 2H]`, `recurrent_kernel` `[H, 2H]`, `bias` `[2H]`, gates in
    the order g, c; and those of the options.

    Args:
        forget_bias: the number that `init` adds to :math:`b_g`. None is the number of
            the scheme, 1 by default. It is only a starting value: `step` adds nothing.
            With norm "fastrnns" or ``use_bias=False`` there is no such bias, and `init`
            refuses a number.
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is a `UGRNNCarry(h)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range; from `init`,
            if `heads` does not divide H, or `forget_bias` is a number and there is no
            such bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.ugrnn(forget_bias=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=2)
        >>> params["bias"].tolist()
        [2.0, 2.0, 0.0, 0.0]
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 2), (2, 2))

    Reference:
        Collins et al., "Capacity and trainability in recurrent neural networks", 2016,
        arXiv:1611.09913.
    """
    return _UGRNN(forget_bias=forget_bias, **options)
