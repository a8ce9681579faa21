"""The long short-term memory."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, layer_norm


class LSTMCarry(NamedTuple):
    """What an LSTM carries from step to step.

    Attributes:
        h: output, `[..., H]`.
        c: memory, `[..., H]`. Raw even in a normalised cell.
    """

    h: jax.Array
    c: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LSTM(GatedCell):
    name = "lstm"
    gates = ("i", "f", "g", "o")
    carry_type = LSTMCarry

    forget_bias: float = 1.0

    def own_shapes(self, hidden_features):
        if self.norm is None:
            return {}
        return {"norm_c": (hidden_features,), "norm_c_bias": (hidden_features,)}

    def gate_biases(self):
        return {"f": self.forget_bias}

    def step(self, params, carry, x):
        wx, uh, p, (_, c) = self.project(params, carry, x)
        i, f, g, o = jnp.split(self.integrate(wx, uh, p), len(self.gates), axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        seen = c
        if self.norm is not None:
            seen = layer_norm(c, p["norm_c"]) + p["norm_c_bias"]
        h = jax.nn.sigmoid(o) * jnp.tanh(seen)
        new = _precision.cast_like(LSTMCarry(h, c), carry)
        return new, new.h


def lstm(
    *,
    norm: str | None = None,
    integration: str = "additive",
    forget_bias: float = 1.0,
    dtype: Any = None,
) -> Cell:
    r"""The LSTM, plain, layer-normalised, multiplicatively integrated, or both.

    .. math::
        i, f, g, o &= \mathrm{split}(z), \quad z = W x_t + U h_{t-1} + b \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(c_t)

    With ``norm="ba2016"``, :math:`W x` becomes :math:`LN(W x; g_1)` and :math:`U h`
    becomes :math:`LN(U h; g_2)`, each over all gates jointly, with a gain and no bias,
    and :math:`h = \sigma(o) \odot \tanh(LN(c; g_3) + b_3)`; the carried c is raw.
    With ``integration="multiplicative"``, :math:`z = \alpha \odot W x \odot U h +
    \beta_1 \odot U h + \beta_2 \odot W x + b`, on the normalised terms if there are.

    Params: `kernel` `[D, 4H]`, `recurrent_kernel` `[H, 4H]`, `bias` `[4H]`, gates in
    the order i, f, g, o; with the norm `norm_x` and `norm_h` `[4H]`, `norm_c` and
    `norm_c_bias` `[H]`; with multiplicative integration `alpha`, `beta1` and `beta2`
    `[4H]`, which start at 1, 0.5 and 0.5.

    Args:
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        forget_bias: what `init` adds to the bias of the forget gate. It is a start and
            not a term: `step` adds nothing.
        dtype: of the GEMM operands, such as `jnp.bfloat16`. They are accumulated in
            float32, and all else stays in the dtype of the carry. None for no cast.

    Returns:
        A `Cell` whose carry is an `LSTMCarry(h, c)`.

    Raises:
        TypeError: if `forget_bias` or `dtype` has the wrong type.
        ValueError: for an unknown option.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.lstm(norm="ba2016")
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.c.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Hochreiter and Schmidhuber, "Long short-term memory", 1997. Ba et al., "Layer
        normalization", 2016, arXiv:1607.06450. Wu et al., "On multiplicative
        integration with recurrent neural networks", 2016, arXiv:1606.06630.
    """
    return _LSTM(
        norm=norm,
        integration=integration,
        forget_bias=_checks.check_number("lstm", "forget_bias", forget_bias),
        dtype=_precision.compute_dtype(dtype),
    )
