"""Gated linear attention."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import split
from scanrnn.cells._matrix_memory import MatrixMemory, joined, outer, read
from scanrnn.cells._table import Param, with_biases

SHARPNESS = 16.0  # the paper's tau


class GLACarry(NamedTuple):
    """The carry of gated linear attention: what it passes from step to step.

    Attributes:
        S: memory, `[..., heads, H/heads, H/heads]`: a row for every feature of the
            values, a column for every feature of the keys.
    """

    S: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GLA(MatrixMemory):
    name = "gla"
    gates = ("q", "k", "v")
    carry_type = GLACarry

    rank: int = 16
    use_bias: bool = True

    def __post_init__(self):
        super().__post_init__()
        self._set_flags("use_bias")
        _checks.check_size(self.name, "rank", self.rank)

    def table(self, in_features, hidden_features):
        D, H = in_features, hidden_features
        table = {
            "kernel": Param((D, 3 * H), "kernel", self.gates),
            "gate_down": Param((D, self.rank), "kernel"),
            "gate_up": Param((self.rank, H), "kernel"),
            "gate_bias": Param((H,), "bias"),
        }
        return with_biases(self.use_bias, table, "gate_bias")

    def equations(self, p, carry, x, noise):
        del noise
        q, k, v = map(self.apart, split(p.dot(x, "kernel"), 3))
        gate = p.dot(p.dot(x, "gate_down"), "gate_up")
        gate = p.biased(gate, "gate_bias")
        keep = self.apart(jnp.exp(jax.nn.log_sigmoid(gate) / SHARPNESS))
        S = p.wide(carry.S) * keep[..., None, :] + outer(v, k)
        return (S,), joined(read(S, q * q.shape[-1] ** -0.5))


def gla(
    *, heads: int = 1, rank: int = 16, use_bias: bool = True, dtype: Any = None
) -> Cell:
    r"""Gated linear attention: a matrix memory whose columns are forgotten one by one.

    .. math::
        q_t &= W_q x_t, \quad k_t = W_k x_t, \quad v_t = W_v x_t \\
        \alpha_t &= \sigma(W_2 W_1 x_t + b)^{1/16} \\
        S_t &= S_{t-1} \operatorname{diag}(\alpha_t) + v_t k_t^\top \\
        h_t &= S_t q_t / \sqrt d

    for each head of d = H/heads features. The paper's layer also has a norm and a gate
    of the output. They need only one step, and are not part of the cell.

    The recurrence is diagonal: each column of S is multiplied by its own factor.

    Params: `kernel` `[D, 3H]` in the order q, k, v, heads side by side in each;
    `gate_down` `[D, rank]`, `gate_up` `[rank, H]` and `gate_bias` `[H]`.

    Args:
        heads: number of heads; each has its own memory.
        rank: rank of the product :math:`W_2 W_1`.
        use_bias: whether the gate has the bias b.
        dtype: the dtype of the GEMM operands; see `GateOptions`. It does not apply to S
            q, which is not a GEMM.

    Returns:
        A `Cell` whose carry is a `GLACarry(S)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `heads` or `rank` is less than 1; from `init`, if `heads` does
            not divide H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.gla(heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([5, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.S.shape, y.shape
        ((5, 2, 2, 2), (5, 4))

    Reference:
        Yang et al., "Gated linear attention transformers with hardware-efficient
        training", 2023, arXiv:2312.06635.
    """
    return _GLA(heads=heads, rank=rank, use_bias=use_bias, dtype=dtype)
