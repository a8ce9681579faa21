"""The minimal gated recurrent unit."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param, with_biases


def positive(v):
    """The paper's g: increasing, continuous and positive."""
    return jnp.where(v >= 0, v + 0.5, jax.nn.sigmoid(v))


CANDIDATES = {"linear": lambda v: v, "positive": positive}


class MinGRUCarry(NamedTuple):
    """The carry of a minGRU: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Minimal(FramedCell):
    """A cell whose gates see x only, and whose candidate is linear or positive."""

    candidate: str = "linear"
    use_bias: bool = True
    dtype: Any = None

    def __post_init__(self):
        """Refuse unknown options."""
        _checks.check_option(self.name, "candidate", self.candidate, CANDIDATES)
        self._set_flags("use_bias")
        self._set(dtype=_precision.compute_dtype(self.dtype))

    def table(self, in_features, hidden_features):
        """One matrix and one bias, over all gates."""
        size = len(self.gates) * hidden_features
        table = {
            "kernel": Param((in_features, size), "kernel", self.gates),
            "bias": Param((size,), "bias", self.gates),
        }
        return with_biases(self.use_bias, table, "bias")

    def arguments(self, p, x):
        """The arguments of the gates, and, as the last item, the candidate."""
        *gates, v = split(p.biased(p.dot(x, "kernel")), len(self.gates))
        return *gates, CANDIDATES[self.candidate](v)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MinGRU(Minimal):
    name = "mingru"
    gates = ("z", "h")
    carry_type = MinGRUCarry

    def keeps(self):
        return {"z": -1.0}

    def equations(self, p, carry, x, noise):
        z, candidate = self.arguments(p, x)
        keep, come = jax.nn.sigmoid(-z), jax.nn.sigmoid(z)
        h = keep * p.wide(carry.h) + come * candidate
        return (h,), h


def mingru(
    *, candidate: str = "linear", use_bias: bool = True, dtype: Any = None
) -> Cell:
    r"""The minimal GRU: no gate sees the carry, so the recurrence is linear in it.

    .. math::
        z_t &= \sigma(W_z x_t + b_z) \\
        \tilde h_t &= g(W_h x_t + b_h) \\
        h_t &= (1 - z_t) \odot h_{t-1} + z_t \odot \tilde h_t

    With candidate "linear", the paper's vanilla version, g is the identity. With
    "positive", the paper's log-space version, g(v) is :math:`v + 0.5` for :math:`v \ge
    0` and :math:`\sigma(v)` below, so that h stays positive. No logarithm is taken
    here: computed step by step, both are stable.

    The carry starts at zeros. In the paper's log-space code, a parallel run starts from
    :math:`g(h_0)`, which is 0.5 for zeros, and a sequential run from :math:`h_0`. To
    match the parallel run, give :math:`g(h_0)` as the initial carry.

    Params: `kernel` `[D, 2H]`, `bias` `[2H]`, gates in the order z, h.

    Args:
        candidate: "linear" or "positive".
        use_bias: whether the cell has the bias b.
        dtype: the dtype of the GEMM operands; see `GateOptions`.

    Returns:
        A `Cell` whose carry is a `MinGRUCarry(h)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: for an unknown candidate.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.mingru(candidate="positive")
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.h.shape, bool((y > 0).all())
        ((2, 5), True)

    Reference:
        Feng et al., "Were RNNs all we needed?", 2024, arXiv:2410.01201.
    """
    return _MinGRU(candidate=candidate, use_bias=use_bias, dtype=dtype)
