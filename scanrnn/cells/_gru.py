"""The gated recurrent unit, in three dialects."""

import dataclasses
from typing import NamedTuple, Unpack

import jax

from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import GateOptions
from scanrnn.cells._resets import ResettingCell


class GRUCarry(NamedTuple):
    """The carry of a GRU: what it passes from step to step.

    Attributes:
        h: output, `[..., H]`.
    """

    h: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GRU(ResettingCell):
    name = "gru"
    gates = ("r", "z", "n")
    carry_type = GRUCarry
    dialects = ("cudnn", "cho2014", "haiku")

    dialect: str = "cudnn"

    def gate_biases(self):
        return {}

    def keeps(self):
        return {"z": -1.0 if self.dialect == "haiku" else 1.0}

    def equations(self, p, carry, x, noise):
        h = p.wide(carry.h)
        _, z, n = self.gates_and_candidate(p, carry, x, noise)
        if self.dialect == "haiku":
            h = (1 - z) * h + z * n
        else:
            h = (1 - z) * n + z * h
        return (h,), h


def gru(*, dialect: str = "cudnn", **options: Unpack[GateOptions]) -> Cell:
    r"""The gated recurrent unit.

    .. math::
        r &= \sigma(W_r x_t + U_r h_{t-1} + b_r) \\
        z &= \sigma(W_z x_t + U_z h_{t-1} + b_z) \\
        n &= \tanh(W_n x_t + b_n + r \odot (U_n h_{t-1} + b_{hn})) \\
        h_t &= (1 - z) \odot n + z \odot h_{t-1}

    This is dialect "cudnn". PyTorch, Flax, Equinox, and Keras with ``reset_after=True``
    use it too. In dialect "cho2014", the paper's, the reset comes before the product:
    :math:`n = \tanh(W_n x_t + U_n (r \odot h_{t-1}) + b_n)`. Keras with
    ``reset_after=False`` uses it too. Dialect "haiku", Haiku's, is the paper's with z
    inverted: :math:`h_t = (1 - z) \odot h_{t-1} + z \odot n`.

    With multiplicative integration and "cudnn", :math:`r \odot (U_n h + b_{hn})` takes
    the place of :math:`U h` in the candidate. It corresponds to the paper's :math:`U_n
    (r \odot h)`, with the reset after the GEMM.

    Params: `kernel` `[D, 3H]`, `recurrent_kernel` `[H, 3H]`, `bias` `[3H]`, gates in
    the order r, z, n; with "cudnn" also `recurrent_bias` `[H]`, which is :math:`b_{hn}`
    (for r and z a second bias would only add to the first); and those of the options.

    Args:
        dialect: "cudnn", "cho2014" or "haiku".
        **options: see `GateOptions`.

    Returns:
        A `Cell` whose carry is a `GRUCarry(h)`.

    Raises:
        TypeError: if an option does not exist or has the wrong type.
        ValueError: if an option has an unknown value or is out of range; for norm "tf"
            or "praxis" with dialect "cudnn"; for any other norm with the other
            dialects; from `init`, if `heads` does not divide H.

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
        arXiv:1406.1078.
    """
    return _GRU(dialect=dialect, **options)
