"""The state space of Mamba-2."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._cell import Cell
from scanrnn.cells._gated import split
from scanrnn.cells._matrix_memory import (
    MatrixMemory,
    joined,
    log_rates,
    outer,
    read,
    step_bias,
)
from scanrnn.cells._table import Param, with_biases


class Mamba2Carry(NamedTuple):
    """The carry of Mamba-2: what it passes from step to step.

    Attributes:
        S: state, `[..., heads, H/heads, N]`: one row for each feature.
    """

    S: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mamba2(MatrixMemory):
    name = "mamba2"
    gates = ("x",)
    carry_type = Mamba2Carry

    state: int = 16
    use_bias: bool = True

    def __post_init__(self):
        super().__post_init__()
        self._set_flags("use_bias")
        _checks.check_size(self.name, "state", self.state)

    def carry_shapes(self, hidden_features):
        return {"S": (self.heads, hidden_features // self.heads, self.state)}

    def table(self, in_features, hidden_features):
        D, H, heads = in_features, hidden_features, self.heads
        table = {
            "kernel": Param((D, H), "kernel"),
            "state_kernel": Param((D, 2 * self.state), "kernel", ("B", "C")),
            "step_kernel": Param((D, heads), "kernel"),
            "step_bias": Param((heads,), step_bias),
            "decay": Param((heads,), log_rates),
            "skip": Param((heads,), 1.0),
        }
        return with_biases(self.use_bias, table, "step_bias")

    def equations(self, p, carry, x, noise):
        del noise
        B, C = (a[..., None, :] for a in split(p.dot(x, "state_kernel"), 2))
        step = p.biased(p.dot(x, "step_kernel"), "step_bias")
        step = jax.nn.softplus(step)[..., None]
        keep = jnp.exp(-jnp.exp(p["decay"])[..., None] * step)
        u = self.apart(p.dot(x, "kernel"))
        S = keep[..., None] * p.wide(carry.S) + outer(step * u, B)
        return (S,), joined(read(S, C) + p["skip"][..., None] * u)


def mamba2(
    *, heads: int = 1, state: int = 16, use_bias: bool = True, dtype: Any = None
) -> Cell:
    r"""The state space of Mamba-2: a matrix memory with one factor for all of it.

    .. math::
        u_t &= W x_t, \quad B_t = W_B x_t, \quad C_t = W_C x_t, \quad
        \Delta_t = \operatorname{softplus}(w_\Delta^\top x_t + b) \\
        S_t &= e^{-e^a \Delta_t} S_{t-1} + \Delta_t u_t B_t^\top \\
        h_t &= S_t C_t + D u_t

    for each head of H/heads features of u. :math:`\Delta`, a and D are one number for
    each head. B and C are N numbers, the same for all heads. The paper's short
    convolution, the SiLU of u, B and C after it, and the norm and gate of the output
    are not part of the cell.

    The recurrence is diagonal: all elements of the S of a head are multiplied by the
    same factor.

    Params: `kernel` `[D, H]`; `state_kernel` `[D, 2N]` in the order B, C;
    `step_kernel` `[D, heads]` and `step_bias` `[heads]`, which are :math:`w_\Delta` and
    b; `decay` and `skip` `[heads]`, which are a and D. softplus(b) starts log-uniformly
    from 0.001 to 0.1, :math:`e^a` uniformly from 1 to 16, and D at 1.

    Args:
        heads: number of heads; each has its own memory.
        state: N, the size of the state of each feature.
        use_bias: whether the cell has the bias b. Without it, steps start near
            softplus(0) = 0.69, which forgets fast.
        dtype: the dtype of the GEMM operands; see `GateOptions`. It does not apply to S
            C, which is not a GEMM.

    Returns:
        A `Cell` whose carry is a `Mamba2Carry(S)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `heads` or `state` is less than 1; from `init`, if `heads` does
            not divide H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.mamba2(heads=2, state=3)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([5, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.S.shape, y.shape
        ((5, 2, 2, 3), (5, 4))

    Reference:
        Dao and Gu, "Transformers are SSMs", 2024, arXiv:2405.21060.
    """
    return _Mamba2(heads=heads, state=state, use_bias=use_bias, dtype=dtype)
