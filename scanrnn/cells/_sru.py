"""The simple recurrent unit."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param

_ACTIVATIONS = {"identity": lambda c: c, "tanh": jnp.tanh, "relu": jax.nn.relu}


class SRUCarry(NamedTuple):
    """The carry of a simple recurrent unit: what it passes from step to step.

    Attributes:
        c: memory, `[..., H]`.
    """

    c: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SRU(FramedCell):
    name = "sru"
    gates = ("g", "f", "r")
    carry_type = SRUCarry
    emits = None

    activation: str
    peephole: bool
    highway_bias: float
    scaled: bool
    use_bias: bool
    dtype: Any

    def gate_biases(self):
        return {"r": self.highway_bias}

    def init(self, key, in_features, hidden_features, dtype=jnp.float32, **options):
        params = super().init(key, in_features, hidden_features, dtype, **options)
        default = options.get("scheme", "default") == "default"
        if self.peephole and default and "kernel_init" not in options:
            # Half of a gate's variance comes from x, and half from the memory.
            halves = jnp.array([1, 0.5, 0.5], dtype)
            params["kernel"] *= jnp.sqrt(jnp.repeat(halves, hidden_features))[None]
        return params

    def table(self, in_features, hidden_features):
        D, H = in_features, hidden_features
        table = {"kernel": Param((D, 3 * H), "kernel", self.gates)}
        if self.use_bias:
            table["bias"] = Param((2 * H,), "bias", ("f", "r"))
        if self.peephole:
            table["peephole_f"] = Param((H,), _of_half_variance)
            table["peephole_r"] = Param((H,), _of_half_variance)
        if D != H:
            table["skip_kernel"] = Param((D, H), "kernel")
        return table

    def equations(self, p, carry, x, noise):
        del noise
        before = p.wide(carry.c)
        g, f, r = split(p.dot(x, "kernel"), 3)
        if self.peephole:
            f += p["peephole_f"] * before
            r += p["peephole_r"] * before
        if self.use_bias:
            b_f, b_r = split(p["bias"], 2)
            f, r = f + b_f, r + b_r
        f, r = jax.nn.sigmoid(f), jax.nn.sigmoid(r)
        c = f * before + (1 - f) * g
        skip = p.dot(x, "skip_kernel") if "skip_kernel" in p else p.wide(x)
        scale = math.sqrt(1 + 2 * math.exp(self.highway_bias)) if self.scaled else 1.0
        h = r * _ACTIVATIONS[self.activation](c) + (1 - r) * (scale * skip)
        return (c,), h


def _of_half_variance(key, shape, dtype):
    bound = math.sqrt(1.5)
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def sru(
    *,
    activation: str = "identity",
    peephole: bool = True,
    highway_bias: float = 0.0,
    scaled: bool = True,
    use_bias: bool = True,
    dtype: Any = None,
) -> Cell:
    r"""The simple recurrent unit, with its highway connection.

    .. math::
        f &= \sigma(W_f x_t + v_f \odot c_{t-1} + b_f) \\
        r &= \sigma(W_r x_t + v_r \odot c_{t-1} + b_r) \\
        c_t &= f \odot c_{t-1} + (1 - f) \odot (W x_t) \\
        h_t &= r \odot \phi(c_t) + (1 - r) \odot \alpha x_t

    No matrix product needs the carry. If :math:`D \neq H`, a fourth product :math:`W_x
    x_t` replaces :math:`x_t`. With `scaled`, :math:`\alpha = \sqrt{1 + 2 e^b}`, where b
    is `highway_bias`: this constant keeps the variance from layer to layer. Without
    `scaled`, :math:`\alpha` is 1.

    Without `peephole` there are no :math:`v_f` and :math:`v_r`: the gates read x alone.
    Then c is affine in its old value, so a GPU or a TPU can run all steps in parallel.

    Params: `kernel` `[D, 3H]`, products in the order W, f, r; `bias` `[2H]`, gates in
    the order f, r; with `peephole`, `peephole_f` and `peephole_r` `[H]`, which are
    :math:`v_f` and :math:`v_r`, drawn with variance 1/2; and, if :math:`D \neq H`,
    `skip_kernel` `[D, H]`, which is :math:`W_x`. With `peephole`, :math:`W_f` and
    :math:`W_r` have half the variance of W, as in the authors' code, unless you give a
    `scheme` or `kernel_init`.

    Args:
        activation: :math:`\phi`, "identity" as in the paper's last version, "tanh" as
            in its first ones, or "relu".
        peephole: whether the gates see the memory, as in the paper's last version, or
            not, as in its first one.
        highway_bias: starting value of :math:`b_r`. If it is negative, most of x is
            passed on at first. With ``use_bias=False`` it must be 0.
        scaled: whether x is scaled by :math:`\alpha`.
        use_bias: whether the cell has the biases :math:`b_f` and :math:`b_r`.
        dtype: the dtype of the GEMM operands; see `GateOptions`.

    Returns:
        A `Cell` whose carry is an `SRUCarry(c)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: for an unknown `activation`, or if `highway_bias` is not 0 and there
            are no biases.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.sru(highway_bias=-3)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> params["skip_kernel"].shape, carry.c.shape, y.shape
        ((3, 5), (2, 5), (2, 5))

    Reference:
        Lei et al., "Simple recurrent units for highly parallelizable recurrence", 2018,
        arXiv:1709.02755.
    """
    _checks.check_option("sru", "activation", activation, _ACTIVATIONS)
    highway_bias = _checks.check_number("sru", "highway_bias", highway_bias)
    return _SRU(
        activation=activation,
        peephole=_checks.check_flag("sru", "peephole", peephole),
        highway_bias=highway_bias,
        scaled=_checks.check_flag("sru", "scaled", scaled),
        use_bias=_checks.check_use_bias("sru", use_bias, highway_bias=highway_bias),
        dtype=_precision.compute_dtype(dtype),
    )
