"""The minimal long short-term memory."""

import dataclasses
from typing import Any, NamedTuple

import jax

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._mingru import Minimal


class MinLSTMCarry(NamedTuple):
    """The carry of a minLSTM: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MinLSTM(Minimal):
    name = "minlstm"
    gates = ("f", "i", "h")
    carry_type = MinLSTMCarry

    forget_bias: float | None = None

    def __post_init__(self):
        super().__post_init__()
        self._set_numbers("forget_bias")
        start = self.forget_bias
        _checks.check_use_bias(self.name, self.use_bias, forget_bias=start)

    def gate_biases(self):
        return {"f": self.forget_bias}

    def equations(self, p, carry, x, noise):
        f, i, candidate = self.arguments(p, x)
        # f / (f + i) from logarithms: the quotient is 0 / 0 if both gates are closed.
        ratio = jax.nn.log_sigmoid(f) - jax.nn.log_sigmoid(i)
        keep, come = jax.nn.sigmoid(ratio), jax.nn.sigmoid(-ratio)
        h = keep * p.wide(carry.h) + come * candidate
        return (h,), h


def minlstm(
    *,
    candidate: str = "linear",
    forget_bias: float | None = None,
    use_bias: bool = True,
    dtype: Any = None,
) -> Cell:
    r"""The minimal LSTM: no gate sees the carry, so the recurrence is linear in it.

    .. math::
        f_t, i_t &= \sigma(W_f x_t + b_f), \ \sigma(W_i x_t + b_i) \\
        \tilde h_t &= g(W_h x_t + b_h) \\
        h_t &= \frac{f_t}{f_t + i_t} \odot h_{t-1}
               + \frac{i_t}{f_t + i_t} \odot \tilde h_t

    g is as in `mingru`. The quotients are computed as :math:`\sigma(\pm(\log f_t - \log
    i_t))`, which is stable when both gates are closed. The carry starts at zeros; see
    `mingru` for what the paper's code starts from.

    Params: `kernel` `[D, 3H]`, `bias` `[3H]`, gates in the order f, i, h.

    Args:
        candidate: "linear" or "positive".
        forget_bias: the number that `init` adds to the bias of the forget gate. None is
            the number of the scheme, 1 by default. With ``use_bias=False`` a number is
            refused.
        use_bias: whether the cell has the bias b.
        dtype: the dtype of the GEMM operands; see `GateOptions`.

    Returns:
        A `Cell` whose carry is a `MinLSTMCarry(h)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: for an unknown candidate, or if `forget_bias` is a number and there
            is no bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.minlstm()
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Feng et al., "Were RNNs all we needed?", 2024, arXiv:2410.01201.
    """
    return _MinLSTM(
        candidate=candidate,
        forget_bias=forget_bias,
        use_bias=use_bias,
        dtype=dtype,
    )
