"""The real-gated linear recurrent unit of Griffin."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param, with_biases

SHARPNESS = 8.0  # the paper's c
KEPT = (0.9, 0.999)  # where a^c starts


class RGLRUCarry(NamedTuple):
    """The carry of an RG-LRU: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RGLRU(FramedCell):
    name = "rglru"
    gates = ("r", "i")
    carry_type = RGLRUCarry

    heads: int = 1
    use_bias: bool = True
    dtype: Any = None

    def __post_init__(self):
        _checks.check_size(self.name, "heads", self.heads)
        self._set_flags("use_bias")
        self._set(dtype=_precision.compute_dtype(self.dtype))

    def check_sizes(self, in_features, hidden_features):
        if in_features != hidden_features:
            raise ValueError(
                f"rglru: in_features={in_features!r} and hidden_features="
                f"{hidden_features!r} must be equal, because x enters h elementwise; "
                "project x first"
            )
        _checks.check_heads(self.name, hidden_features, self.heads)

    def keeps(self):
        return {}

    def sizes(self, params):
        D, H = super().sizes(params)
        return D * self.heads, H * self.heads

    def table(self, in_features, hidden_features):
        H, heads = hidden_features, self.heads
        shape = in_features // heads, 2 * H // heads
        kernel = Param(shape, "kernel", self.gates)
        if heads > 1:
            kernel = Param((heads, *shape), "kernel", self.gates, stacked=1)
        table = {
            "kernel": kernel,
            "bias": Param((2 * H,), "bias", self.gates),
            "decay": Param((H,), _decay),
        }
        return with_biases(self.use_bias, table, "bias")

    def equations(self, p, carry, x, noise):
        r, i = split(jax.nn.sigmoid(p.biased(self._blocks(p, x))), 2)
        log_a = -SHARPNESS * jax.nn.softplus(p["decay"]) * r
        come = _root(-jnp.expm1(2 * log_a)) * (i * p.wide(x))
        h = jnp.exp(log_a) * p.wide(carry.h) + come
        return (h,), h

    def _blocks(self, p, x):
        """W x, gate by gate over all blocks."""
        if self.heads == 1:
            return p.dot(x, "kernel")
        x = x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        kernel = p.reshaped("kernel", (self.heads, x.shape[-1], 2, -1))
        wx = p.einsum("...nd,ndgk->...gnk", x, kernel)
        return wx.reshape(*wx.shape[:-3], math.prod(wx.shape[-3:]))


def _root(a):
    """The square root, with slope 0 at 0.

    As r goes to 0, the slope of the root grows without limit, but the slope of r falls
    faster: their product goes to 0. So 0 is exact where 1 - a^2 has rounded to 0.
    """
    positive = a > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, a, 1.0)), 0.0)


def _decay(key, shape, dtype):
    """Values of the parameter for which exp(-c softplus) is uniform in `KEPT`."""
    kept = jax.random.uniform(key, shape, dtype, *KEPT)
    return jnp.log(jnp.expm1(-jnp.log(kept) / SHARPNESS))


def rglru(*, heads: int = 1, use_bias: bool = True, dtype: Any = None) -> Cell:
    r"""The real-gated linear recurrent unit.

    .. math::
        r_t &= \sigma(W_r x_t + b_r) \\
        i_t &= \sigma(W_i x_t + b_i) \\
        \log a_t &= -c \, \mathrm{softplus}(\Lambda) \odot r_t, \quad c = 8 \\
        h_t &= a_t \odot h_{t-1} + \sqrt{1 - a_t^2} \odot (i_t \odot x_t)

    x enters h elementwise, so D must be H. The root is computed as :math:`\sqrt{-
    \mathrm{expm1}(2 \log a_t)}`. Its gradients are exact and finite, and need no
    clipping: as :math:`a_t` goes to 1, the slope of the root grows, but it is
    multiplied by the slope of :math:`r_t`, which falls faster.

    Params: `kernel` `[D, 2H]` (`[heads, D/heads, 2H/heads]` with several heads) and
    `bias` `[2H]`, gates in the order r, i; `decay` `[H]`, which is :math:`\Lambda`. It
    starts where :math:`\exp(-c \, \mathrm{softplus}(\Lambda))` is uniform in [0.9,
    0.999]. The paper also writes :math:`a = \sigma(\Lambda)`; there :math:`\Lambda` has
    the opposite sign.

    Args:
        heads: number of diagonal blocks that :math:`W_r` and :math:`W_i` consist of.
        use_bias: whether the cell has the biases :math:`b_r` and :math:`b_i`.
        dtype: the dtype of the GEMM operands; see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `RGLRUCarry(h)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `heads` is less than 1; from `init`, if D is not H, or `heads`
            does not divide H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.rglru(heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=4, hidden_features=4)
        >>> x = jnp.ones([2, 4])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 4), (2, 4))

    Reference:
        De et al., "Griffin: mixing gated linear recurrences with local attention for
        efficient language models", 2024, arXiv:2402.19427.
    """
    return _RGLRU(heads=heads, use_bias=use_bias, dtype=dtype)
