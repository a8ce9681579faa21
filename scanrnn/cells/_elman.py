"""The simple recurrent network."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions

_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class ElmanCarry(NamedTuple):
    """The carry of an Elman cell: what it passes from step to step.

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

    def equations(self, p, carry, x, noise):
        wx, uh = self.products(p, x, carry.h, noise)
        h = _ACTIVATIONS[self.activation](self.join(p, wx, uh))
        return (h,), h


def elman(activation: str = "tanh", **options: Unpack[GateOptions]) -> Cell:
    r"""The simple recurrent network of Elman.

    .. math::
        h_t = \phi(W x_t + U h_{t-1} + b)

    Params: `kernel` `[D, H]`, `recurrent_kernel` `[H, H]`, `bias` `[H]`, and those of
    the options.

    Args:
        activation: :math:`\phi`, "tanh" or "relu".
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `ElmanCarry(h)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range; from `init`,
            if `heads` does not divide H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.elman("relu")
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, y.shape
        ((2, 5), (2, 5))

    Reference:
        Elman, "Finding structure in time", 1990.
    """
    return _Elman(activation=activation, **options)
