"""The scalar memory of xLSTM: exponential gates, normalised and stabilised."""

import dataclasses
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GatedCell, GateOptions, split

FORGETS = {"sigmoid": jax.nn.log_sigmoid, "exp": lambda f: f}  # log phi(f)
NORMALIZERS = ("paper", "clamped", "epsilon")
EPSILON = 1e-6


class SLSTMCarry(NamedTuple):
    r"""The carry of an sLSTM: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
        c: memory, times :math:`e^{-m}`, `[..., H]`.
        n: normaliser, times :math:`e^{-m}`, `[..., H]`.
        m: stabiliser, `[..., H]`.
    """

    h: jax.Array
    c: jax.Array
    n: jax.Array
    m: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SLSTM(GatedCell):
    name = "slstm"
    gates = ("i", "f", "z", "o")
    carry_type = SLSTMCarry
    stabilised = ("c", "n", "m")

    forget: str = "sigmoid"
    normalizer: str = "paper"
    forget_bias: float | None = None

    def __post_init__(self):
        super().__post_init__()
        _checks.check_option(self.name, "forget", self.forget, FORGETS)
        _checks.check_option(self.name, "normalizer", self.normalizer, NORMALIZERS)
        self._set_numbers("forget_bias")

    def gate_biases(self):
        return forget_biases(self.forget, self.forget_bias)

    def keeps(self):
        return super().keeps() if self.forget == "sigmoid" else {}

    def equations(self, p, carry, x, noise):
        wx, uh = self.products(p, x, carry.h, noise)
        i, f, z, o = split(self.join(p, wx, uh), 4)
        _, c, n, m = p.wide(carry)
        kept = FORGETS[self.forget](f) + m
        if self.normalizer == "paper":
            # An empty memory has no scale of its own: the input sets it.
            kept = jnp.where(n == 0, jnp.minimum(kept, i), kept)
        m, keep, come = stabilised(p, kept, i, carry.m)
        c = keep * c + come * jnp.tanh(z)
        n = keep * n + come
        h = jax.nn.sigmoid(o) * c / self._divisor(n)
        return (h, c, n, m), h

    def _divisor(self, n):
        if self.normalizer == "paper":
            return n
        return jnp.maximum(n, 1.0 if self.normalizer == "clamped" else EPSILON)


def forget_biases(forget, bias):
    """By gate, the number added to its bias: 0 for "exp", as e^1 > 1."""
    return {"f": 0.0 if bias is None and forget == "exp" else bias}


def stabilised(p, kept, come, like):
    """The new stabiliser m, and both gates divided by e^m.

    Args:
        p: the parameters.
        kept: logarithm of the forget gate, plus the old stabiliser.
        come: logarithm of the input gate.
        like: the old stabiliser, in the dtype of the carry.

    Returns:
        m, and the stabilised gates of what is kept and of what comes in.
    """
    # m is rounded to the dtype of the carry first. Gates from an m that is not rounded
    # would be wrong by a factor, e to the power of the rounding error.
    m = jnp.maximum(kept, come).astype(like.dtype).astype(p.dtype)
    return m, jnp.exp(kept - m), jnp.exp(come - m)


def slstm(
    *,
    forget: str = "sigmoid",
    normalizer: str = "paper",
    forget_bias: float | None = None,
    **options: Unpack[GateOptions],
) -> Cell:
    r"""The LSTM with exponential gates and a scalar memory.

    .. math::
        i, f, z, o &= \mathrm{split}(W x_t + U h_{t-1} + b) \\
        c_t &= \phi(f) \odot c_{t-1} + e^i \odot \tanh(z) \\
        n_t &= \phi(f) \odot n_{t-1} + e^i \\
        h_t &= \sigma(o) \odot c_t / n_t

    where :math:`\phi` is :math:`\sigma` or the exponential. The step is computed in a
    stabilised form: :math:`m_t = \max(\log \phi(f) + m_{t-1}, i)`, the gates are
    :math:`e^{i - m_t}` and :math:`e^{\log \phi(f) + m_{t-1} - m_t}`, and c and n are
    carried multiplied by :math:`e^{-m}`.

    The carry starts at zeros. An empty memory, n = 0, has no scale for m. With
    normalizer "paper", m is then i: the first n is 1, however small :math:`e^i` is, n
    is never less, and h is exactly :math:`\sigma(o) \odot c / n` of the equations
    above. Two other cells have the same name. They keep :math:`m_0 = 0`, so the first n
    may be close to zero:

    - "clamped": :math:`h = \sigma(o) \odot c / \max(n, 1)`, with the stabilised n.
    - "epsilon": :math:`h = \sigma(o) \odot c / \max(n, 10^{-6})`, likewise.

    The option `norm` applies only to the gates; c is normalised by n. With `heads`, U
    is block-diagonal.

    Params: `kernel` `[D, 4H]`, `recurrent_kernel` `[H, 4H]` (`[heads, H/heads,
    4H/heads]` with several heads), `bias` `[4H]`, gates in the order i, f, z, o; and
    those of the options.

    Args:
        forget: :math:`\phi`, "sigmoid" or "exp". With "exp" m may grow by f in every
            step, until it is too large for a float16 carry.
        normalizer: "paper", "clamped" or "epsilon".
        forget_bias: the number that `init` adds to the bias of the forget gate. None is
            the number of the scheme, 1 by default, or 0 with "exp", where with 1 old
            values would outgrow new ones. With norm "fastrnns" or ``use_bias=False``
            there is no such bias, and `init` refuses a number.
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `SLSTMCarry(h, c, n, m)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range; from `init`,
            if `heads` does not divide H, or `forget_bias` is a number and there is no
            such bias.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.slstm(forget="exp", heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.n.tolist()
        [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]

    Reference:
        Beck et al., "xLSTM: extended long short-term memory", 2024, arXiv:2405.04517.
    """
    return _SLSTM(
        forget=forget, normalizer=normalizer, forget_bias=forget_bias, **options
    )
