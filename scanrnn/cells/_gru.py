"""The gated recurrent unit, with the reset gate after the GEMM."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell


class GRUCarry(NamedTuple):
    """What a GRU carries from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GRU(GatedCell):
    name = "gru"
    gates = ("r", "z", "n")
    carry_type = GRUCarry

    def own_shapes(self, hidden_features):
        return {"recurrent_bias": (hidden_features,)}

    def step(self, params, carry, x):
        wx, uh, p, (h,) = self.project(params, carry, x)
        two = 2 * h.shape[-1]  # where the candidate begins
        wx_rz, wx_n = jnp.split(wx, [two], axis=-1)
        uh_rz, uh_n = jnp.split(uh, [two], axis=-1)
        rz = self.integrate(wx_rz, uh_rz, p, part=slice(two))
        r, z = jnp.split(jax.nn.sigmoid(rz), 2, axis=-1)
        reset = r * (uh_n + p["recurrent_bias"])
        n = jnp.tanh(self.integrate(wx_n, reset, p, part=slice(two, None)))
        h = (1 - z) * n + z * h
        new = _precision.cast_like(GRUCarry(h), carry)
        return new, new.h


def gru(
    *,
    norm: str | None = None,
    integration: str = "additive",
    dtype: Any = None,
) -> Cell:
    r"""The GRU of cuDNN and PyTorch, which resets after the GEMM.

    .. math::
        r &= \sigma(W_r x_t + U_r h_{t-1} + b_r) \\
        z &= \sigma(W_z x_t + U_z h_{t-1} + b_z) \\
        n &= \tanh(W_n x_t + b_n + r \odot (U_n h_{t-1} + b_{hn})) \\
        h_t &= (1 - z) \odot n + z \odot h_{t-1}

    With ``norm="ba2016"``, :math:`W x` becomes :math:`LN(W x; g_1)` and :math:`U h`
    becomes :math:`LN(U h; g_2)`, each over all gates jointly, with a gain and no bias.
    With ``integration="multiplicative"`` every :math:`W x + U h + b` becomes
    :math:`\alpha \odot W x \odot U h + \beta_1 \odot U h + \beta_2 \odot W x + b`, on
    the normalised terms if there are. In the candidate, :math:`r \odot (U_n h +
    b_{hn})` is in the place of :math:`U h`: it is what the paper's
    :math:`U_n (r \odot h)` becomes when the reset comes after the GEMM, and with
    :math:`\alpha = 0` and :math:`\beta = 1` the additive cell comes out.

    Params: `kernel` `[D, 3H]`, `recurrent_kernel` `[H, 3H]`, `bias` `[3H]`, gates in
    the order r, z, n, and `recurrent_bias` `[H]`, which is :math:`b_{hn}` (for r and
    z a second bias would only add to the first); with the norm `norm_x` and `norm_h`
    `[3H]`; with multiplicative integration `alpha`, `beta1` and `beta2` `[3H]`, which
    start at 1, 0.5 and 0.5.

    Args:
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        dtype: of the GEMM operands, such as `jnp.bfloat16`. They are accumulated in
            float32, and all else stays in the dtype of the carry. None for no cast.

    Returns:
        A `Cell` whose carry is a `GRUCarry(h)`.

    Raises:
        ValueError: for an unknown option.

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
        arXiv:1406.1078. Ba et al., "Layer normalization", 2016, arXiv:1607.06450. Wu
        et al., "On multiplicative integration with recurrent neural networks", 2016,
        arXiv:1606.06630.
    """
    return _GRU(
        norm=norm, integration=integration, dtype=_precision.compute_dtype(dtype)
    )
