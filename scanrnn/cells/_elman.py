"""The simple recurrent network."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell

_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class ElmanCarry(NamedTuple):
    """What an Elman cell carries from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Elman(GatedCell):
    name = "elman"
    gates = ("h",)
    carry_type = ElmanCarry

    activation: str = "tanh"

    def __post_init__(self):
        super().__post_init__()
        _checks.check_option(self.name, "activation", self.activation, _ACTIVATIONS)

    def step(self, params, carry, x):
        wx, uh, p, _ = self.project(params, carry, x)
        h = _ACTIVATIONS[self.activation](self.integrate(wx, uh, p))
        new = _precision.cast_like(ElmanCarry(h), carry)
        return new, new.h


def elman(
    activation: str = "tanh",
    *,
    norm: str | None = None,
    integration: str = "additive",
    dtype: Any = None,
) -> Cell:
    r"""The simple recurrent network of Elman.

    .. math::
        h_t = \phi(W x_t + U h_{t-1} + b)

    With ``norm="ba2016"``, :math:`W x` becomes :math:`LN(W x; g_1)` and :math:`U h`
    becomes :math:`LN(U h; g_2)`, with a gain and no bias. With
    ``integration="multiplicative"`` the sum becomes :math:`\alpha \odot W x \odot U h +
    \beta_1 \odot U h + \beta_2 \odot W x + b`, on the normalised terms if there are.

    Params: `kernel` `[D, H]`, `recurrent_kernel` `[H, H]`, `bias` `[H]`; with the norm
    `norm_x` and `norm_h` `[H]`; with multiplicative integration `alpha`, `beta1` and
    `beta2` `[H]`, which start at 1, 0.5 and 0.5.

    Args:
        activation: "tanh" or "relu".
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        dtype: of the GEMM operands, such as `jnp.bfloat16`. They are accumulated in
            float32, and all else stays in the dtype of the carry. None for no cast.

    Returns:
        A `Cell` whose carry is an `ElmanCarry(h)`.

    Raises:
        ValueError: for an unknown option.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.elman("relu")
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Elman, "Finding structure in time", 1990. Ba et al., "Layer normalization",
        2016, arXiv:1607.06450. Wu et al., "On multiplicative integration with recurrent
        neural networks", 2016, arXiv:1606.06630.
    """
    return _Elman(
        activation=activation,
        norm=norm,
        integration=integration,
        dtype=_precision.compute_dtype(dtype),
    )
