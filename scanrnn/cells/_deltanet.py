"""DeltaNet and gated DeltaNet."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import split
from scanrnn.cells._matrix_memory import (
    MatrixMemory,
    joined,
    log_rates,
    of_length_one,
    outer,
    read,
    step_bias,
)
from scanrnn.cells._table import Param, with_biases


class DeltaNetCarry(NamedTuple):
    """The carry of DeltaNet: what it passes from step to step.

    Attributes:
        S: memory, `[..., heads, H/heads, H/heads]`: a row for every feature of the
            values, a column for every feature of the keys.
    """

    S: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNet(MatrixMemory):
    """A cell that corrects what its memory returns for a key."""

    name = "deltanet"
    gates = ("q", "k", "v")
    carry_type = DeltaNetCarry

    def table(self, in_features, hidden_features):
        """The projections to q, k and v, and the one to the rate of writing."""
        D, H = in_features, hidden_features
        return {
            "kernel": Param((D, 3 * H), "kernel", self.gates),
            "rate_kernel": Param((D, self.heads), "kernel"),
        }

    def kept(self, p, x, S):
        """The memory after forgetting; this cell forgets nothing."""
        del p, x
        return S

    def equations(self, p, carry, x, noise):
        """A step; see `deltanet`."""
        del noise
        q, k, v = split(p.dot(x, "kernel"), 3)
        q, k = (of_length_one(self.apart(jax.nn.silu(a))) for a in (q, k))
        rate = jax.nn.sigmoid(p.dot(x, "rate_kernel"))[..., None]
        S = self.kept(p, x, p.wide(carry.S))
        S = S + outer(rate * (self.apart(v) - read(S, k)), k)
        return (S,), joined(read(S, q))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GatedDeltaNet(DeltaNet):
    name = "gated_deltanet"

    use_bias: bool = True

    def __post_init__(self):
        super().__post_init__()
        self._set_flags("use_bias")

    def table(self, in_features, hidden_features):
        D, N = in_features, self.heads
        table = super().table(in_features, hidden_features) | {
            "step_kernel": Param((D, N), "kernel"),
            "step_bias": Param((N,), step_bias),
            "decay": Param((N,), log_rates),
        }
        return with_biases(self.use_bias, table, "step_bias")

    def kept(self, p, x, S):
        step = jax.nn.softplus(p.biased(p.dot(x, "step_kernel"), "step_bias"))
        return jnp.exp(-jnp.exp(p["decay"]) * step)[..., None, None] * S


def deltanet(*, heads: int = 1, dtype: Any = None) -> Cell:
    r"""DeltaNet: a matrix memory that learns by the delta rule.

    .. math::
        q_t &= \frac{\operatorname{silu}(W_q x_t)}{\|\operatorname{silu}(W_q x_t)\|},
        \quad k_t = \frac{\operatorname{silu}(W_k x_t)}{\|\operatorname{silu}(W_k
        x_t)\|}, \quad v_t = W_v x_t, \quad \beta_t = \sigma(w_\beta^\top x_t) \\
        S_t &= S_{t-1} (I - \beta_t k_t k_t^\top) + \beta_t v_t k_t^\top \\
        h_t &= S_t q_t

    for each head of d = H/heads features; :math:`\beta` is one number for each head. A
    step moves what the memory returns for the key, :math:`S k`, towards the value v. It
    is computed as :math:`S + \beta (v - S k) k^\top`. The paper's short convolutions,
    the SiLU that the authors' code applies to v after them, and the norm of the output
    are not part of the cell. A length has 1e-6 added to its square, as in their code.

    The recurrence is affine in S. It couples the d numbers of each row of S.

    Params: `kernel` `[D, 3H]` in the order q, k, v, heads side by side in each;
    `rate_kernel` `[D, heads]`, which is :math:`w_\beta`.

    Args:
        heads: number of heads; each has its own memory.
        dtype: the dtype of the GEMM operands; see `GateOptions`. It does not apply to S
            k and S q, which are not GEMMs.

    Returns:
        A `Cell` whose carry is a `DeltaNetCarry(S)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `heads` is less than 1; from `init`, if `heads` does not divide
            H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.deltanet(heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([5, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.S.shape, y.shape
        ((5, 2, 2, 2), (5, 4))

    Reference:
        Yang et al., "Parallelizing linear transformers with the delta rule over
        sequence length", 2024, arXiv:2406.06484.
    """
    return DeltaNet(heads=heads, dtype=dtype)


def gated_deltanet(*, heads: int = 1, use_bias: bool = True, dtype: Any = None) -> Cell:
    r"""Gated DeltaNet: the delta rule with a gate that forgets.

    .. math::
        \alpha_t &= \exp(-e^a \operatorname{softplus}(w_\Delta^\top x_t + b)) \\
        S_t &= \alpha_t S_{t-1} (I - \beta_t k_t k_t^\top) + \beta_t v_t k_t^\top \\
        h_t &= S_t q_t

    for each head of d = H/heads features; :math:`\alpha` is one number for each head.
    q, k, v and :math:`\beta` are those of `deltanet`, which leaves out the short
    convolutions and the SiLU of v. The paper's norm and gate of the output are not part
    of the cell either.

    The recurrence is affine in S. It couples the d numbers of each row of S.

    Params: those of `deltanet`; `step_kernel` `[D, heads]`, which is :math:`w_\Delta`;
    `step_bias` `[heads]`, which is b; and `decay` `[heads]`, which is a. b and a start
    as in `mamba2`.

    Args:
        heads: number of heads; each has its own memory.
        use_bias: whether the cell has the bias b. Without it, steps start near
            softplus(0) = 0.69, which forgets fast.
        dtype: the dtype of the GEMM operands; see `GateOptions`. It does not apply to S
            k and S q, which are not GEMMs.

    Returns:
        A `Cell` whose carry is a `DeltaNetCarry(S)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `heads` is less than 1; from `init`, if `heads` does not divide
            H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.gated_deltanet(heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([5, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.S.shape, y.shape
        ((5, 2, 2, 2), (5, 4))

    Reference:
        Yang, Kautz, Hatamizadeh, "Gated delta networks: improving Mamba2 with delta
        rule", 2024, arXiv:2412.06464.
    """
    return _GatedDeltaNet(heads=heads, use_bias=use_bias, dtype=dtype)
