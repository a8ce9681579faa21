"""The state of RWKV-7."""

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
    of_length_one,
    outer,
    read,
)
from scanrnn.cells._table import Param, with_biases

SLOWEST = 0.6065306597126334  # e^-0.5
EPSILON = 64e-5  # added to the variance, as in the authors' code


class RWKV7Carry(NamedTuple):
    """The carry of RWKV-7: what it passes from step to step.

    Attributes:
        S: memory, `[..., heads, H/heads, H/heads]`: a row for every feature of the
            values, a column for every feature of the keys.
    """

    S: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RWKV7(MatrixMemory):
    name = "rwkv7"
    gates = ("r", "k", "v")
    carry_type = RWKV7Carry

    rank: int = 16
    norm: bool = False
    use_bias: bool = True

    def __post_init__(self):
        super().__post_init__()
        _checks.check_size(self.name, "rank", self.rank)
        self._set_flags("norm", "use_bias")

    def table(self, in_features, hidden_features):
        D, H, R = in_features, hidden_features, self.rank
        norm = {"norm": Param((H,), 1.0), "norm_bias": Param((H,), 0.0)}
        table = {
            "kernel": Param((D, 3 * H), "kernel", self.gates),
            "decay_down": Param((D, R), "kernel"),
            "decay_up": Param((R, H), "kernel"),
            "decay_bias": Param((H,), 0.0),
            "rate_down": Param((D, R), "kernel"),
            "rate_up": Param((R, H), "kernel"),
            "rate_bias": Param((H,), 0.0),
            "removal": Param((H,), 1.0),
            "replacement": Param((H,), 1.0),
            "bonus": Param((H,), 0.0),
            **(norm if self.norm else {}),
        }
        return with_biases(self.use_bias, table, "decay_bias", "rate_bias")

    def equations(self, p, carry, x, noise):
        del noise
        r, k, v = split(p.dot(x, "kernel"), 3)
        d = p.dot(jnp.tanh(p.dot(x, "decay_down")), "decay_up")
        d = p.biased(d, "decay_bias")
        a = p.dot(p.dot(x, "rate_down"), "rate_up")
        a = jax.nn.sigmoid(p.biased(a, "rate_bias"))
        w = self.apart(jnp.exp(-SLOWEST * jax.nn.sigmoid(d)))
        removed = of_length_one(self.apart(k * p["removal"]))
        k = k * (1 + (a - 1) * p["replacement"])
        bonus = self.apart(r * k * p["bonus"]).sum(-1, keepdims=True)
        r, k, v, a = map(self.apart, (r, k, v, a))
        S = p.wide(carry.S)
        S = S * w[..., None, :] - outer(read(S, removed), a * removed) + outer(v, k)
        return (S,), joined(self._normal(p, read(S, r)) + bonus * v)

    def _normal(self, p, h):
        """What is read, normalised over the features of each head."""
        if not self.norm:
            return h
        h = jax.nn.standardize(h, axis=-1, epsilon=EPSILON)
        return self.apart(p["norm"]) * h + self.apart(p["norm_bias"])


def rwkv7(
    *,
    heads: int = 1,
    rank: int = 16,
    norm: bool = False,
    use_bias: bool = True,
    dtype: Any = None,
) -> Cell:
    r"""The state of RWKV-7: a generalised delta rule.

    .. math::
        r_t &= W_r x_t, \quad k_t = W_k x_t, \quad v_t = W_v x_t \\
        w_t &= \exp(-e^{-0.5} \sigma(B_w \tanh(A_w x_t) + b_w)), \quad
        a_t = \sigma(B_a A_a x_t + b_a) \\
        \hat\kappa_t &= \frac{k_t \odot \xi}{\|k_t \odot \xi\|}, \quad
        \tilde k_t = k_t \odot (1 + (a_t - 1) \odot \alpha) \\
        S_t &= S_{t-1} (\operatorname{diag}(w_t) - \hat\kappa_t (a_t \odot
        \hat\kappa_t)^\top) + v_t \tilde k_t^\top \\
        h_t &= S_t r_t + (r_t^\top (\rho \odot \tilde k_t)) \, v_t

    for each head of d = H/heads features. A length has 1e-6 added to its square.

    With `norm`, :math:`g \odot LN(S_t r_t) + s` replaces :math:`S_t r_t`, as in the
    paper: what is read is normalised over the features of each head, with eps 64e-5. A
    norm after the cell would be another one, because it would also see the last term.
    Three parts of the paper's layer are not part of the cell: the token shift before
    it, which mixes an input with the previous one, the gate after it, and, above the
    first layer, the mixing of v with that of the first layer.

    The recurrence is affine in S. It couples the d numbers of each row of S.

    Params: `kernel` `[D, 3H]` in the order r, k, v, heads side by side in each;
    `decay_down` `[D, rank]`, `decay_up` `[rank, H]` and `decay_bias` `[H]`, which are
    :math:`A_w`, :math:`B_w` and :math:`b_w`; `rate_down`, `rate_up` and `rate_bias`, of
    the same shapes, which are :math:`A_a`, :math:`B_a` and :math:`b_a`; `removal`,
    `replacement` and `bonus` `[H]`, which are :math:`\xi`, :math:`\alpha` and
    :math:`\rho`; with `norm`, `norm` and `norm_bias` `[H]`, which are g and s.

    Args:
        heads: number of heads; each has its own memory.
        rank: rank of the products :math:`B A`.
        norm: whether what is read is normalised.
        use_bias: whether the cell has the biases :math:`b_w` and :math:`b_a`. Without
            them, the shift s of the norm stays.
        dtype: the dtype of the GEMM operands; see `GateOptions`. It does not apply to
            the products with S, which are not GEMMs.

    Returns:
        A `Cell` whose carry is an `RWKV7Carry(S)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `heads` or `rank` is less than 1; from `init`, if `heads` does
            not divide H.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.rwkv7(heads=2)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=4)
        >>> x = jnp.ones([5, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.S.shape, y.shape
        ((5, 2, 2, 2), (5, 4))

    Reference:
        Peng et al., "RWKV-7 \"Goose\" with expressive dynamic state evolution", 2025,
        arXiv:2503.14456.
    """
    return _RWKV7(heads=heads, rank=rank, norm=norm, use_bias=use_bias, dtype=dtype)
