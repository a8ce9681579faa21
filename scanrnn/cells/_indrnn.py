"""The independently recurrent network."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions
from scanrnn.cells._table import Param

_ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


class IndRNNCarry(NamedTuple):
    """The carry of an independently recurrent network.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _IndRNN(GatedCell):
    name = "indrnn"
    gates = ("h",)
    carry_type = IndRNNCarry

    activation: str = "relu"
    longest: float | None = None

    def __post_init__(self):
        super().__post_init__()
        _checks.check_option(self.name, "activation", self.activation, _ACTIVATIONS)
        self._set_numbers("longest")
        if self.longest is not None and not self.longest >= 1:
            raise ValueError(f"indrnn: longest={self.longest}, want at least 1 step")
        if self.norm is not None:
            raise ValueError(
                f"indrnn: norm={self.norm!r} would join the features of u * h, which "
                "are to be independent; leave norm=None and normalise the inputs"
            )
        if self.heads != 1:
            raise ValueError(
                f"indrnn: heads={self.heads}, but every feature of h is a head of its "
                "own already; leave heads=1"
            )

    def recurrent_param(self, in_features, hidden_features):
        del in_features
        return Param((hidden_features,), "recurrent_kernel")

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        initializers.setdefault("recurrent_kernel_init", self._start)
        return super().init(key, in_features, hidden_features, dtype, **initializers)

    def _start(self, key, shape, dtype):
        most = 1.0 if self.longest is None else 2.0 ** (1 / self.longest)
        return jax.random.uniform(key, shape, dtype, 0.0, most)

    def recurrent(self, p, h, noise, first=0, last=None):
        """The elementwise product u * h, with recurrent dropout if there is noise."""
        del first, last
        h, mask = p.wide(h), noise.get("recurrent")
        if mask is not None:
            h = h * (mask[..., 0, :] if self.mask_per_gate else mask)
        return p["recurrent_kernel"] * h

    def noise(self, key, params, xs):
        matrix = jnp.expand_dims(params["recurrent_kernel"], -1)
        return super().noise(key, {"recurrent_kernel": matrix}, xs)

    def equations(self, p, carry, x, noise):
        wx, uh = self.products(p, x, carry.h, noise)
        h = _ACTIVATIONS[self.activation](self.join(p, wx, uh))
        return (h,), h


def indrnn(
    activation: str = "relu",
    *,
    longest: float | None = None,
    **options: Unpack[GateOptions],
) -> Cell:
    r"""The independently recurrent network: each feature of h depends only on itself.

    .. math::
        h_t = \phi(W x_t + u \odot h_{t-1} + b)

    No matrix product needs the carry. The W of the next layer mixes the features.

    Params: `kernel` `[D, H]`; `recurrent_kernel` `[H]`, which is u; `bias` `[H]`; and
    those of the options. With every scheme, u is drawn from :math:`\mathcal U(0,
    2^{1/T})`, so that a gradient at most doubles in T steps. To draw u differently,
    give `init` a `recurrent_kernel_init`: in the paper, for example, the last layer has
    only long memories. Training may move u out of this range; clip it yourself.

    Args:
        activation: :math:`\phi`, "relu" or "tanh".
        longest: T, the number of steps of a sequence. None is for any number of steps:
            u is then at most 1.
        **options: see `GateOptions`. `norm` must be None, because a norm would mix the
            features, and `heads` must be 1.

    Returns:
        A `Cell` whose carry is an `IndRNNCarry(h)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range, `norm` is not
            None, `heads` is not 1, or `longest` is less than 1.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.indrnn(longest=100)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> params["recurrent_kernel"].shape, carry.h.shape, y.shape
        ((5,), (2, 5), (2, 5))

    Reference:
        Li et al., "Independently recurrent neural network (IndRNN): building a longer
        and deeper RNN", 2018, arXiv:1803.04831.
    """
    return _IndRNN(activation=activation, longest=longest, **options)
