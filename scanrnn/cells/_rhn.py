"""The recurrent highway network: many highway layers in one step."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param


class RHNCarry(NamedTuple):
    """The carry of a recurrent highway network: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`: the state after the last of its layers.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RHN(FramedCell):
    name = "rhn"
    carry_type = RHNCarry

    depth: int
    coupled: bool
    transfer_bias: float
    use_bias: bool
    dtype: Any

    @property
    def gates(self):
        return ("h", "t") if self.coupled else ("h", "t", "c")

    def gate_biases(self):
        # The carry gate starts at the same value, coupled or not.
        return {"t": self.transfer_bias, "c": -self.transfer_bias}

    def keeps(self):
        return {"t": -1.0, "c": 1.0}

    def table(self, in_features, hidden_features):
        L, D, H, G = self.depth, in_features, hidden_features, len(self.gates)
        recurrent = Param((L, H, G * H), "recurrent_kernel", self.gates, stacked=1)
        table = {
            "kernel": Param((D, G * H), "kernel", self.gates),
            "recurrent_kernel": recurrent,
        }
        if self.use_bias:
            table["bias"] = Param((L, G * H), "bias", self.gates)
        return table

    def equations(self, p, carry, x, noise):
        del noise
        s, H, G = carry.h, carry.h.shape[-1], len(self.gates)
        kernel = p.reshaped("recurrent_kernel", (self.depth, H, G * H))
        for layer in range(self.depth):
            a = p.einsum("...h,hg->...g", s, kernel[layer])
            a = a + p.dot(x, "kernel") if layer == 0 else a
            a = a + p["bias"][..., layer, :] if self.use_bias else a
            h, t, *c = split(a, G)
            t = jax.nn.sigmoid(t)
            c = 1 - t if self.coupled else jax.nn.sigmoid(c[0])
            s = jnp.tanh(h) * t + p.wide(s) * c
        return (s,), s


def rhn(
    depth: int = 2,
    *,
    coupled: bool = True,
    transfer_bias: float | None = None,
    use_bias: bool = True,
    dtype: Any = None,
) -> Cell:
    r"""The recurrent highway network: L highway layers from step to step.

    .. math::
        h_\ell &= \tanh(W_h x_t [\ell = 1] + R_{h\ell} s_{\ell - 1} + b_{h\ell}) \\
        t_\ell &= \sigma(W_t x_t [\ell = 1] + R_{t\ell} s_{\ell - 1} + b_{t\ell}) \\
        s_\ell &= h_\ell \odot t_\ell + s_{\ell - 1} \odot (1 - t_\ell)

    where :math:`s_0 = h_{t-1}` and :math:`h_t = s_L`. Only the first layer sees x. With
    ``coupled=False`` a carry gate :math:`c_\ell`, computed like :math:`t_\ell`,
    replaces :math:`1 - t_\ell`. The L matrix products are in series.

    Params: `kernel` `[D, 2H]`, `recurrent_kernel` `[L, H, 2H]`, `bias` `[L, 2H]`, gates
    in the order h, t (with ``coupled=False`` h, t, c, and 3H in place of 2H).

    Args:
        depth: L, the number of highway layers.
        coupled: whether the carry gate is one minus the transfer gate.
        transfer_bias: starting value of the biases of t; None is -2. If it is negative,
            most of s is kept at first. The biases of c start at its negative, so that
            coupled and separate gates start alike. The result of a `bias_init` is added
            to both. With ``use_bias=False`` a number is refused.
        use_bias: whether the cell has the biases b.
        dtype: the dtype of the GEMM operands; see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `RHNCarry(h)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `depth` is less than 1, or `transfer_bias` is a number and there
            are no biases.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.rhn(depth=3)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> params["recurrent_kernel"].shape, carry.h.shape, y.shape
        ((3, 5, 10), (2, 5), (2, 5))

    Reference:
        Zilly et al., "Recurrent highway networks", 2016, arXiv:1607.03474.
    """
    _checks.check_size("rhn", "depth", depth)
    if transfer_bias is None:
        transfer_bias = -2.0 if use_bias else 0.0
    transfer_bias = _checks.check_number("rhn", "transfer_bias", transfer_bias)
    return _RHN(
        depth=depth,
        coupled=_checks.check_flag("rhn", "coupled", coupled),
        transfer_bias=transfer_bias,
        use_bias=_checks.check_use_bias("rhn", use_bias, transfer_bias=transfer_bias),
        dtype=_precision.compute_dtype(dtype),
    )
