"""The minimal gated unit, in two dialects."""

import dataclasses
from typing import NamedTuple, Unpack

import jax

from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GateOptions
from scanrnn.cells._resets import ResettingCell


class MGUCarry(NamedTuple):
    """The carry of a minimal gated unit: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MGU(ResettingCell):
    name = "mgu"
    carry_type = MGUCarry
    dialects = ("flax", "zhou2016")
    flax_scheme = {"forget_bias": 1.0}

    dialect: str = "flax"
    forget_bias: float | None = None

    def __post_init__(self):
        super().__post_init__()
        self._set_numbers("forget_bias")

    @property
    def gates(self):
        # Schemes use a gate's name for what it does: the paper's f lets new values in.
        return ("f", "n") if self.dialect == "flax" else ("i", "n")

    def gate_biases(self):
        return {"f": self.forget_bias, "i": self.forget_bias or 0.0}

    def equations(self, p, carry, x, noise):
        h = p.wide(carry.h)
        f, n = self.gates_and_candidate(p, carry, x, noise)
        if self.dialect == "flax":
            h = (1 - f) * n + f * h
        else:
            h = (1 - f) * h + f * n
        return (h,), h


def mgu(
    *,
    dialect: str = "flax",
    forget_bias: float | None = None,
    **options: Unpack[GateOptions],
) -> Cell:
    r"""The minimal gated unit: a GRU with one gate for reset and update.

    .. math::
        f &= \sigma(W_f x_t + U_f h_{t-1} + b_f) \\
        n &= \tanh(W_n x_t + b_n + f \odot (U_n h_{t-1} + b_{hn})) \\
        h_t &= (1 - f) \odot n + f \odot h_{t-1}

    This is dialect "flax", Flax's ``MGUCell``. In dialect "zhou2016", the paper's, the
    gate comes before the product, and f is the share of the new value:

    .. math::
        n &= \tanh(W_n x_t + U_n (f \odot h_{t-1}) + b_n) \\
        h_t &= (1 - f) \odot h_{t-1} + f \odot n

    With multiplicative integration and "flax", :math:`f \odot (U_n h + b_{hn})` takes
    the place of :math:`U h` in the candidate, as in `gru`.

    Params: `kernel` `[D, 2H]`, `recurrent_kernel` `[H, 2H]`, `bias` `[2H]`, gates in
    the order f, n; with "flax" also `recurrent_bias` `[H]`, which is :math:`b_{hn}`;
    and those of the options.

    Args:
        dialect: "flax" or "zhou2016".
        forget_bias: the number that `init` adds to :math:`b_f`. With "flax", None is
            the number of the scheme, 1 by default. With "zhou2016", None is 0, because
            f does not keep the carry. With norm "fastrnns" or ``use_bias=False`` there
            is no such bias, and `init` refuses a number.
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `MGUCarry(h)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range; for norm "tf"
            or "praxis" with dialect "flax"; for any other norm with "zhou2016"; from
            `init`, if `heads` does not divide H, or `forget_bias` is a number and there
            is no such bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.mgu()
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Zhou et al., "Minimal gated unit for recurrent neural networks", 2016,
        arXiv:1603.09420.
    """
    return _MGU(dialect=dialect, forget_bias=forget_bias, **options)
