"""The quasi-recurrent network: a convolution over time, and pooling."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param

DIALECTS = ("bradbury2016", "pytorch-qrnn")
# The gates besides the candidate and f, in the order of the paper.
_POOLINGS = {"f": (), "fo": ("o",), "ifo": ("o", "i")}


class QRNNCarry(NamedTuple):
    """The carry of a quasi-recurrent network with window 1.

    Attributes:
        c: memory, `[..., H]`.
    """

    c: jax.Array


class QRNNWindowCarry(NamedTuple):
    """The carry of a quasi-recurrent network with window 2.

    Attributes:
        c: memory, `[..., H]`.
        previous: the product of V and the last input, `[..., G*H]`, for the next step.
    """

    c: jax.Array
    previous: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _QRNN(FramedCell):
    name = "qrnn"

    window: int
    pooling: str
    dialect: str
    forget_bias: float | None
    use_bias: bool
    dtype: Any

    @property
    def gates(self):
        # Schemes use a gate's name for what it does: an inverted f lets new values in.
        f = "f" if self.dialect == "bradbury2016" else "i"
        return ("g", f, *_POOLINGS[self.pooling])

    @property
    def carry_type(self):
        return QRNNCarry if self.window == 1 else QRNNWindowCarry

    @property
    def emits(self) -> Any:
        return "c" if self.pooling == "f" else None

    def carry_shapes(self, hidden_features):
        wide = len(self.gates) * hidden_features
        return {"c": (hidden_features,), "previous": (wide,)}

    def gate_biases(self):
        own = {"f": self.forget_bias}
        return own if "f" in self.gates else {"i": self.forget_bias or 0.0}

    def table(self, in_features, hidden_features):
        wide = len(self.gates) * hidden_features
        matrix = Param((in_features, wide), "kernel", self.gates)
        table = {"kernel": matrix}
        if self.use_bias:
            table["bias"] = Param((wide,), "bias", self.gates)
        if self.window == 2:
            table["previous_kernel"] = matrix
        return table

    def equations(self, p, carry, x, noise):
        del noise
        a = p.biased(p.dot(x, "kernel"))
        new = ()
        if self.window == 2:
            # The product is carried, and not x: it needs no carry, so it can run before
            # the loop.
            a = a + p.wide(carry.previous)
            new = (p.dot(x, "previous_kernel"),)
        z, f, *rest = split(a, len(self.gates))
        z, f, *rest = jnp.tanh(z), *map(jax.nn.sigmoid, (f, *rest))
        gates = dict(zip(_POOLINGS[self.pooling], rest, strict=True))
        if self.dialect == "pytorch-qrnn":
            f = 1 - f
        c = f * p.wide(carry.c) + gates.get("i", 1 - f) * z
        h = gates["o"] * c if "o" in gates else c
        return (c, *new), h


def qrnn(
    window: int = 1,
    *,
    pooling: str = "fo",
    dialect: str = "bradbury2016",
    forget_bias: float | None = None,
    use_bias: bool = True,
    dtype: Any = None,
) -> Cell:
    r"""The quasi-recurrent network, with a window of one or two inputs.

    .. math::
        z &= \tanh(W_z x_t + V_z x_{t-1} + b_z) \\
        f &= \sigma(W_f x_t + V_f x_{t-1} + b_f) \\
        o &= \sigma(W_o x_t + V_o x_{t-1} + b_o) \\
        c_t &= f \odot c_{t-1} + (1 - f) \odot z \\
        h_t &= o \odot c_t

    With window 1 there is no V. No matrix product needs the carry. This is pooling
    "fo". With pooling "f" there is no o, and :math:`h_t = c_t`. With "ifo" a fourth
    gate i replaces :math:`1 - f`. In dialect "pytorch-qrnn", that of the library of
    this name, f is the share of the new value: :math:`c_t = (1 - f) \odot c_{t-1} + f
    \odot z`.

    For zoneout of c, wrap the cell in `zoneout`. The output is then computed from c
    before zoneout (in the paper: after it), except with pooling "f".

    Params: `kernel` `[D, G*H]` and `bias` `[G*H]`, G gates in the order z, f, o, i:
    pooling "f" has the first two, "fo" the first three, and "ifo" all. With window 2
    also `previous_kernel` `[D, G*H]`, which is V.

    Args:
        window: 1, or 2 to see the previous input too. The input before the first step
            is zero.
        pooling: "f", "fo" or "ifo".
        dialect: "bradbury2016" or "pytorch-qrnn".
        forget_bias: the number that `init` adds to :math:`b_f`. With "bradbury2016",
            None is the number of the scheme, 1 by default. With "pytorch-qrnn", None is
            0, because f does not keep the carry. With ``use_bias=False`` a number is
            refused.
        use_bias: whether the cell has the bias b.
        dtype: the dtype of the GEMM operands; see `GateOptions`.

    Returns:
        A `Cell` whose carry is a `QRNNCarry(c)`, or with window 2 a
        `QRNNWindowCarry(c, previous)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `window` is not 1 or 2, an option has an unknown value, pooling
            is "ifo" with "pytorch-qrnn", or `forget_bias` is a number and there is no
            bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.qrnn(window=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.c.shape, carry.previous.shape, y.shape
        ((2, 5), (2, 15), (2, 5))

    Reference:
        Bradbury et al., "Quasi-recurrent neural networks", 2016, arXiv:1611.01576.
    """
    _checks.check_size("qrnn", "window", window)
    if window > 2:
        raise ValueError(
            f"qrnn: window={window}, want 1 or 2; for a longer one put a convolution "
            "before the cell"
        )
    _checks.check_option("qrnn", "pooling", pooling, _POOLINGS)
    _checks.check_option("qrnn", "dialect", dialect, DIALECTS)
    if pooling == "ifo" and dialect != "bradbury2016":
        raise ValueError(
            "qrnn: pooling='ifo' has a gate i for what is new, which f is with "
            f"dialect={dialect!r}; use dialect='bradbury2016'"
        )
    if forget_bias is not None:
        forget_bias = _checks.check_number("qrnn", "forget_bias", forget_bias)
    return _QRNN(
        window=window,
        pooling=pooling,
        dialect=dialect,
        forget_bias=forget_bias,
        use_bias=_checks.check_use_bias("qrnn", use_bias, forget_bias=forget_bias),
        dtype=_precision.compute_dtype(dtype),
    )
