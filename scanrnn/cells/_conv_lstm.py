"""The convolutional long short-term memory."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _flax_carry
from scanrnn.cells._cell import Cell
from scanrnn.cells._conv import ConvCell, ConvOptions
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param


class ConvLSTMCarry(NamedTuple):
    """The carry of a convolutional LSTM: what it passes from step to step.

    Attributes:
        h: output, `[..., *spatial, F]`.
        c: memory, `[..., *spatial, F]`.
    """

    h: jax.Array
    c: jax.Array

    from_flax = classmethod(_flax_carry.from_flax)
    to_flax = _flax_carry.to_flax


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ConvLSTM(ConvCell):
    name = "conv_lstm"
    gates = ("i", "f", "g", "o")
    carry_type = ConvLSTMCarry
    # Flax gives the recurrent convolution no initializer of its own.
    flax_scheme = {
        "forget_bias": 1.0,
        "recurrent_kernel": jax.nn.initializers.lecun_normal(),
    }

    forget_bias: float | None = None
    peephole: bool = False

    def __post_init__(self):
        super().__post_init__()
        self._set_numbers("forget_bias")

    def gate_biases(self):
        return {"f": self.forget_bias}

    def table(self, in_features, hidden_features):
        table = super().table(in_features, hidden_features)
        if self.peephole:
            vector = Param((hidden_features,), 0.0)
            table |= {f"peephole_{gate}": vector for gate in ("i", "f", "o")}
        return table

    def equations(self, p, carry, x, noise):
        del noise
        a = p.convolve(x, "kernel") + p.convolve(carry.h, "recurrent_kernel")
        i, f, g, o = split(p.biased(a), 4)
        c = p.wide(carry.c)
        i = jax.nn.sigmoid(self._peep(p, "i", i, c))
        f = jax.nn.sigmoid(self._peep(p, "f", f, c))
        c = f * c + i * jnp.tanh(g)
        h = jax.nn.sigmoid(self._peep(p, "o", o, c)) * jnp.tanh(c)
        return (h, c), h

    def _peep(self, p, gate, a, c):
        return a + p[f"peephole_{gate}"] * c if self.peephole else a


def conv_lstm(
    *,
    forget_bias: float | None = None,
    peephole: bool = False,
    **options: Unpack[ConvOptions],
) -> Cell:
    r"""The long short-term memory with convolutions in place of matrix products.

    .. math::
        i, f, g, o &= \mathrm{split}(W * x_t + U * h_{t-1} + b) \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(c_t)

    where :math:`*` is a convolution over 1, 2 or 3 spatial axes that keeps their sizes;
    the split is along the channels. With `peephole`, :math:`w_i \odot c_{t-1}` is added
    to i, :math:`w_f \odot c_{t-1}` to f, and :math:`w_o \odot c_t` to o, with one
    weight for each channel. The paper has one weight for each channel of each pixel,
    which fixes the size of the images. Ours is the special case where all pixels share
    their weights.

    x is `[..., *spatial, C]`; both fields of the carry are `[..., *spatial, F]`.

    Params: `kernel` `[*kernel_size, C, 4F]`, `recurrent_kernel` `[*kernel_size, F,
    4F]`, `bias` `[4F]`, gates in the order i, f, g, o; `peephole_i`, `peephole_f` and
    `peephole_o` `[F]`.

    Args:
        forget_bias: the number that `init` adds to the bias of the forget gate. None is
            the number of the scheme, 1 by default. It is only a starting value: `step`
            adds nothing. With ``use_bias=False`` there is no such bias, and `init`
            refuses a number.
        peephole: whether the gates see the memory.
        **options: see `ConvOptions`.

    Returns:
        A `Cell` whose carry is a `ConvLSTMCarry(h, c)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if a size of the window is less than 1, or the number of its axes is
            not 1, 2 or 3; from `init`, if `forget_bias` is a number and there is no
            such bias; from `step`, if x has too few axes.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.conv_lstm(kernel_size=(3, 3), peephole=True)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 8, 6, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.c.shape, y.shape
        ((2, 8, 6, 5), (2, 8, 6, 5))

    Reference:
        Shi et al., "Convolutional LSTM network: a machine learning approach for
        precipitation nowcasting", 2015, arXiv:1506.04214.
    """
    peephole = _checks.check_flag("conv_lstm", "peephole", peephole)
    return _ConvLSTM(forget_bias=forget_bias, peephole=peephole, **options)
