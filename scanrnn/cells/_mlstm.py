"""The matrix memory of xLSTM."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._slstm import FORGETS, forget_biases, stabilised
from scanrnn.cells._table import Param, with_biases

NORMALIZERS = ("paper", "clamped")
LARGEST_M = 40.0  # e^-40 and its square are not 0 in float32


class MLSTMCarry(NamedTuple):
    r"""The carry of an mLSTM: what it passes from step to step.

    Attributes:
        C: memory, times :math:`e^{-m}`, `[..., heads, H/heads, H/heads]`: a row for
            every feature of the values, a column for every feature of the keys.
        n: normaliser, times :math:`e^{-m}`, `[..., heads, H/heads]`.
        m: stabiliser, `[..., heads]`.
    """

    C: jax.Array
    n: jax.Array
    m: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MLSTM(FramedCell):
    name = "mlstm"
    gates = ("q", "k", "v", "o")
    carry_type = MLSTMCarry
    stabilised = ("C", "n", "m")
    emits = None

    heads: int = 1
    forget: str = "sigmoid"
    normalizer: str = "paper"
    forget_bias: float | None = None
    use_bias: bool = True
    dtype: Any = None

    def __post_init__(self):
        _checks.check_size(self.name, "heads", self.heads)
        _checks.check_option(self.name, "forget", self.forget, FORGETS)
        _checks.check_option(self.name, "normalizer", self.normalizer, NORMALIZERS)
        self._set_numbers("forget_bias")
        start = self.forget_bias
        flag = _checks.check_use_bias(self.name, self.use_bias, forget_bias=start)
        self._set(use_bias=flag)
        self._set(dtype=_precision.compute_dtype(self.dtype))

    def gate_biases(self):
        return forget_biases(self.forget, self.forget_bias)

    def keeps(self):
        return super().keeps() if self.forget == "sigmoid" else {}

    def check_sizes(self, in_features, hidden_features):
        _checks.check_heads(self.name, hidden_features, self.heads)

    def carry_shapes(self, hidden_features):
        d = hidden_features // self.heads
        return {"C": (self.heads, d, d), "n": (self.heads, d), "m": (self.heads,)}

    def table(self, in_features, hidden_features):
        D, H, scalars = in_features, hidden_features, ("i", "f")
        table = {
            "kernel": Param((D, 4 * H), "kernel", self.gates),
            "bias": Param((4 * H,), "bias", self.gates),
            "gate_kernel": Param((D, 2 * self.heads), "kernel", scalars),
            "gate_bias": Param((2 * self.heads,), "bias", scalars),
        }
        return with_biases(self.use_bias, table, "bias", "gate_bias")

    def equations(self, p, carry, x, noise):
        q, k, v, o = self._projections(p, x)
        i, f = split(p.biased(p.dot(x, "gate_kernel"), "gate_bias"), 2)
        C, n, m = p.wide(carry)
        m, keep, come = stabilised(p, FORGETS[self.forget](f) + m, i, carry.m)
        kept, new = keep[..., None], come[..., None] * v
        C = kept[..., None] * C + new[..., None] * k[..., None, :]
        n = kept * n + come[..., None] * k
        # Sums and not GEMMs: the memory is read as precisely as it is written.
        value = jnp.sum(C * q[..., None, :], axis=-1)
        weight = jnp.abs(jnp.sum(n * q, axis=-1))
        h = self._normalised(value, weight, m)
        h = jax.nn.sigmoid(o) * h.reshape(*h.shape[:-2], math.prod(h.shape[-2:]))
        return (C, n, m), h

    def _projections(self, p, x):
        """Queries, keys and values, head by head, and the argument of o."""
        wx = split(p.dot(x, "kernel"), 4)
        d = wx[0].shape[-1] // self.heads
        wx[1] = wx[1] * d**-0.5  # before the bias is added, as in the paper
        if self.use_bias:
            wx = [a + b for a, b in zip(wx, split(p["bias"], 4), strict=True)]
        q, k, v, o = wx
        q, k, v = (a.reshape(*a.shape[:-1], self.heads, d) for a in (q, k, v))
        return q, k, v, o

    def _normalised(self, value, weight, m):
        """C q / max(|n q|, e^-m), computed without overflow of e^m or e^-m."""
        if self.normalizer == "clamped":
            return value / jnp.maximum(weight, 1.0)[..., None]
        scale = jnp.exp(jnp.minimum(m, 0.0))
        least = jnp.exp(-jnp.clip(m, 0.0, LARGEST_M))
        divisor = jnp.maximum(weight * scale, least)
        return value * (scale / divisor)[..., None]


def mlstm(
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    normalizer: str = "paper",
    forget_bias: float | None = None,
    use_bias: bool = True,
    dtype: Any = None,
) -> Cell:
    r"""The LSTM with exponential gates and a matrix memory.

    .. math::
        q_t &= W_q x_t + b_q, \quad k_t = \tfrac{1}{\sqrt d} W_k x_t + b_k, \quad
        v_t = W_v x_t + b_v \\
        C_t &= \phi(f) \, C_{t-1} + e^i \, v_t k_t^\top \\
        n_t &= \phi(f) \, n_{t-1} + e^i \, k_t \\
        h_t &= \sigma(W_o x_t + b_o) \odot \frac{C_t q_t}{\max(|n_t^\top q_t|, 1)}

    for each head of d = H/heads features. :math:`i = w_i^\top x_t + b_i` and :math:`f =
    w_f^\top x_t + b_f` are one number for each head. :math:`\phi` is :math:`\sigma` or
    the exponential. The step is computed in the stabilised form of `slstm`: C and n are
    carried multiplied by :math:`e^{-m}`, so the 1 becomes :math:`e^{-m}`.

    With normalizer "paper", h follows the equations above and does not depend on m. (m
    is limited to 40 in this :math:`e^{-m}`: a smaller :math:`|n^\top q|` is rounding
    error.) With "clamped", the 1 stays, and is compared with the stabilised n. Then h
    depends on m, and on the starting value of m, which is 0.

    No gate sees h, and no weight matrix multiplies the carry. Every step reads and
    writes C, so a gradient that is computed step by step keeps T copies of C.

    Params: `kernel` `[D, 4H]` and `bias` `[4H]` in the order q, k, v, o, heads side by
    side in each; `gate_kernel` `[D, 2*heads]` and `gate_bias` `[2*heads]` in the order
    i, f.

    Args:
        heads: number of heads; each has its own memory.
        forget: :math:`\phi`, "sigmoid" or "exp". With "exp" m may grow by f in every
            step, until it is too large for a float16 carry.
        normalizer: "paper" or "clamped".
        forget_bias: the number that `init` adds to the bias of the forget gate. None is
            the number of the scheme, 1 by default, or 0 with "exp". With
            ``use_bias=False`` a number is refused.
        use_bias: whether the cell has the biases b: without them, `bias` and
            `gate_bias` are no parameters.
        dtype: the dtype of the GEMM operands; see `GateOptions`. It does not apply to C
            q, which is not a GEMM.

    Returns:
        A `Cell` whose carry is an `MLSTMCarry(C, n, m)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if an option has an unknown value, `heads` is less than 1, or
            `forget_bias` is a number and there are no biases; from `init`, if `heads`
            does not divide H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.mlstm(heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([5, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.C.shape, y.shape
        ((5, 2, 2, 2), (5, 4))

    Reference:
        Beck et al., "xLSTM: extended long short-term memory", 2024, arXiv:2405.04517.
    """
    return _MLSTM(
        heads=heads,
        forget=forget,
        normalizer=normalizer,
        forget_bias=forget_bias,
        use_bias=use_bias,
        dtype=dtype,
    )
