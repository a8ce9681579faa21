"""The long short-term memory, and its variants."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _flax_carry
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions, split
from scanrnn.cells._table import Param


class LSTMCarry(NamedTuple):
    """The carry of an LSTM: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`, or `[..., P]` if it is projected.
        c: memory, `[..., H]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from scanrnn.cells import LSTMCarry
        >>> flax_carry = c, h = jnp.ones(5), jnp.zeros(5)
        >>> carry = LSTMCarry.from_flax(flax_carry)
        >>> bool((carry.c == c).all()), bool((carry.to_flax()[1] == h).all())
        (True, True)
    """

    h: jax.Array
    c: jax.Array

    from_flax = classmethod(_flax_carry.from_flax)
    to_flax = _flax_carry.to_flax


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LSTM(GatedCell):
    name = "lstm"
    carry_type = LSTMCarry

    forget_bias: float | None = None
    peephole: bool = False
    coupled: bool = False
    projection: int | None = None
    cell_clip: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.projection is not None:
            _checks.check_size(self.name, "projection", self.projection)
        self._set_flags("peephole", "coupled")
        self._set_numbers("forget_bias", "cell_clip")
        if self.cell_clip is not None and not self.cell_clip > 0:
            raise ValueError(f"lstm: cell_clip={self.cell_clip}, want more than 0")

    @property
    def gates(self):
        return ("f", "g", "o") if self.coupled else ("i", "f", "g", "o")

    def gate_biases(self):
        return {"f": self.forget_bias}

    def out_features(self, hidden_features):
        return self.projection or hidden_features

    def carry_shapes(self, hidden_features):
        return {"h": (self.out_features(hidden_features),), "c": (hidden_features,)}

    def check_sizes(self, in_features, hidden_features):
        super().check_sizes(in_features, hidden_features)
        P = self.out_features(hidden_features)
        if P > hidden_features or P % self.heads:
            raise ValueError(
                f"lstm: projection={P}, want at most hidden_features="
                f"{hidden_features} and a multiple of heads={self.heads}"
            )

    def table(self, in_features, hidden_features):
        H, P = hidden_features, self.out_features(hidden_features)
        table = super().table(in_features, H)
        table["recurrent_kernel"] = self.recurrent_param(P, H)
        if self.peephole:
            sees_c = [gate for gate in self.gates if gate != "g"]
            table |= {f"peephole_{gate}": Param((H,), 0.0) for gate in sees_c}
        if self.projection is not None:
            table["projection"] = Param((H, P), "kernel")
        return table | self.normal.memory_table(H)

    def equations(self, p, carry, x, noise):
        wx, uh = self.products(p, x, carry.h, noise)
        gates = split(self.join(p, wx, uh), len(self.gates))
        a, c = dict(zip(self.gates, gates, strict=True)), p.wide(carry.c)
        f = jax.nn.sigmoid(self._peep(p, a, "f", c))
        i = 1 - f if self.coupled else jax.nn.sigmoid(self._peep(p, a, "i", c))
        c = f * c + i * jnp.tanh(a["g"])
        if self.cell_clip is not None:
            c = jnp.clip(c, -self.cell_clip, self.cell_clip)
        c, seen = self.normal.remembered(p, c)
        h = jax.nn.sigmoid(self._peep(p, a, "o", c)) * jnp.tanh(seen)
        if self.projection is not None:
            h = p.dot(h, "projection")
        return (h, c), h

    def _peep(self, p, a, gate, c):
        return a[gate] + p[f"peephole_{gate}"] * c if self.peephole else a[gate]


def lstm(
    *,
    forget_bias: float | None = None,
    peephole: bool = False,
    coupled: bool = False,
    projection: int | None = None,
    cell_clip: float | None = None,
    **options: Unpack[GateOptions],
) -> Cell:
    r"""The long short-term memory, with options that compose.

    .. math::
        i, f, g, o &= \mathrm{split}(W x_t + U h_{t-1} + b) \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(c_t)

    With `peephole`, :math:`w_i \odot c_{t-1}` is added to i, :math:`w_f \odot c_{t-1}`
    to f, and :math:`w_o \odot c_t` to o. With `coupled` (CIFG), :math:`1 - \sigma(f)`
    replaces :math:`\sigma(i)`, and there is no i. With `projection` to P features,
    :math:`h_t = R (\sigma(o) \odot \tanh(c_t))`, which is PyTorch's ``proj_size``. With
    `cell_clip`, :math:`c_t` is clipped to [-cell_clip, cell_clip] before it is used.

    Params: `kernel` `[D, 4H]`, `recurrent_kernel` `[H, 4H]` (`[P, 4H]` with a
    projection), `bias` `[4H]`, gates in the order i, f, g, o (with `coupled` f, g, o,
    and 3H in place of 4H); `peephole_i` (not with `coupled`), `peephole_f` and
    `peephole_o` `[H]`; `projection` `[H, P]`; and those of the options.

    Args:
        forget_bias: the number that `init` adds to the bias of the forget gate. None is
            the number of the scheme, 1 by default. It is only a starting value: `step`
            adds nothing. With norm "fastrnns" or ``use_bias=False`` there is no such
            bias, and `init` refuses a number.
        peephole: whether the gates see the memory.
        coupled: whether the input gate is one minus the forget gate.
        projection: P, the number of output features, at most H; None for H.
        cell_clip: largest absolute value of c; None for no limit.
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `LSTMCarry(h, c)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range; from `init`,
            if P is more than H, `heads` does not divide H and P, or `forget_bias` is a
            number and there is no such bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.lstm(norm="ba2016", peephole=True)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.c.shape, y.shape
        ((2, 5), (2, 5))

    References:
        Hochreiter and Schmidhuber, "Long short-term memory", 1997. Gers et al.,
        "Learning precise timing with LSTM recurrent networks", 2002 (peepholes).
        Greff et al., "LSTM: a search space odyssey", 2015, arXiv:1503.04069 (CIFG).
        Sak et al., "Long short-term memory based recurrent neural network
        architectures", 2014, arXiv:1402.1128 (projection).
    """
    return _LSTM(
        forget_bias=forget_bias,
        peephole=peephole,
        coupled=coupled,
        projection=projection,
        cell_clip=cell_clip,
        **options,
    )
