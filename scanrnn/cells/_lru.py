"""The linear recurrent unit: a complex diagonal recurrence."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._gated import split
from scanrnn.cells._table import Param

SKIPS = ("matrix", "diagonal")


class LRUCarry(NamedTuple):
    """The carry of an LRU: what it passes from step to step.

    Attributes:
        re: real part of the state, `[..., H]`.
        im: imaginary part, `[..., H]`.
    """

    re: jax.Array
    im: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LRU(FramedCell):
    name = "lru"
    gates = ("re", "im")
    carry_type = LRUCarry
    emits = None

    projection: int | None = None
    skip: str = "matrix"
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 6.283
    dtype: Any = None

    def __post_init__(self):
        if self.projection is not None:
            _checks.check_size(self.name, "projection", self.projection)
        _checks.check_option(self.name, "skip", self.skip, SKIPS)
        for name in ("r_min", "r_max", "max_phase"):
            number = _checks.check_number(self.name, name, getattr(self, name))
            self._set(**{name: number})
        if not 0 <= self.r_min < self.r_max <= 1:
            raise ValueError(
                f"lru: r_min={self.r_min}, r_max={self.r_max}, want a ring with "
                "0 <= r_min < r_max <= 1, in which the recurrence is stable"
            )
        if not self.max_phase > 0:
            raise ValueError(f"lru: max_phase={self.max_phase}, want more than 0")
        self._set(dtype=_precision.compute_dtype(self.dtype))

    def out_features(self, hidden_features):
        return self.projection or hidden_features

    def check_sizes(self, in_features, hidden_features):
        P = self.out_features(hidden_features)
        if self.skip == "diagonal" and in_features != P:
            raise ValueError(
                f"lru: skip='diagonal' multiplies x elementwise, but in_features="
                f"{in_features} and the output has {P}; use skip='matrix', or "
                f"projection={in_features}"
            )

    def initializers(self):
        # The real and the imaginary part each have half of the variance.
        return {"kernel_init": jax.nn.initializers.variance_scaling(0.5, *_NORMAL)}

    def table(self, in_features, hidden_features):
        D, H, P = in_features, hidden_features, self.out_features(hidden_features)
        # The readout has 2H rows, but its fan-in is H complex numbers.
        readout = jax.nn.initializers.variance_scaling(2.0, *_NORMAL)
        diagonal = self.skip == "diagonal"
        return {
            "kernel": Param((D, 2 * H), "kernel", self.gates),
            "nu": Param((H,), self._ring),
            "theta": Param((H,), self._phases),
            "gamma": Param((H,), 0.0),
            "readout": Param((2 * H, P), readout),
            "skip": Param((P,), _standard) if diagonal else Param((D, P), _lecun),
        }

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        params = super().init(key, in_features, hidden_features, dtype, **initializers)
        # gamma is computed from nu, so that the state has the variance of its inputs.
        nu = params["nu"].astype(_precision.widest(dtype))
        gamma = 0.5 * jnp.log(-jnp.expm1(-2 * jnp.exp(nu)))
        return params | {"gamma": gamma.astype(dtype)}

    def _ring(self, key, shape, dtype):
        """Values of nu whose eigenvalues are uniform in the ring, by area."""
        inner, outer = self.r_min**2, self.r_max**2
        square = jax.random.uniform(key, shape, dtype, inner, outer)
        # Keep away from the unit circle and from zero: nu is not finite there.
        epsilon = jnp.finfo(dtype).eps
        square = jnp.clip(square, epsilon, 1 - epsilon)
        return jnp.log(-0.5 * jnp.log(square))

    def _phases(self, key, shape, dtype):
        u = jax.random.uniform(key, shape, dtype, jnp.finfo(dtype).eps, 1.0)
        return jnp.log(self.max_phase * u)

    def equations(self, p, carry, x, noise):
        radius, phase = jnp.exp(-jnp.exp(p["nu"])), jnp.exp(p["theta"])
        a, b = radius * jnp.cos(phase), radius * jnp.sin(phase)
        bx = split(p.dot(x, "kernel"), 2)
        bx_re, bx_im = (jnp.exp(p["gamma"]) * part for part in bx)
        re, im = p.wide(carry)
        re, im = a * re - b * im + bx_re, b * re + a * im + bx_im
        y = p.dot(jnp.concatenate([re, -im], axis=-1), "readout")
        if self.skip == "diagonal":
            return (re, im), y + p["skip"] * p.wide(x)
        return (re, im), y + p.dot(x, "skip")


_NORMAL = ("fan_in", "normal")
_lecun = jax.nn.initializers.lecun_normal()


def _standard(key, shape, dtype):
    return jax.random.normal(key, shape, dtype)


def lru(
    *,
    projection: int | None = None,
    skip: str = "matrix",
    r_min: float = 0.0,
    r_max: float = 1.0,
    max_phase: float = 6.283,
    dtype: Any = None,
) -> Cell:
    r"""The linear recurrent unit.

    .. math::
        \lambda &= \exp(-e^\nu + \mathrm{i} e^\theta) \\
        h_t &= \lambda \odot h_{t-1} + e^\gamma \odot (B x_t) \\
        y_t &= \mathrm{Re}(C h_t) + D x_t

    where h has H complex numbers. They are carried as two real arrays, so the carry may
    have any floating-point dtype of 16 bits or more. The only GEMM that uses the carry
    is the readout C, and its result is not carried.

    Params: `kernel` `[D, 2H]`, which is B with blocks re, im; `nu`, `theta` and `gamma`
    `[H]`, all three logarithms; `readout` `[2H, P]`, the real part of C above its
    imaginary part; `skip` `[D, P]`, or `[P]` if diagonal.

    :math:`\lambda` starts in a ring, uniformly by area, with a phase that is uniform up
    to `max_phase`, and :math:`e^\gamma` at :math:`\sqrt{1 - |\lambda|^2}`. The parts of
    B start with variance 1/(2D), those of C with 1/H, as in the paper. A scheme other
    than "default" changes only B.

    Args:
        projection: P, the number of output features; None for H. In the paper, P is D.
        skip: "matrix" for a full D, as in the paper's equations; "diagonal" for a
            vector, as in the paper's code, which needs as many input as output
            features.
        r_min: inner radius of the ring that :math:`\lambda` starts in.
        r_max: outer radius, at most 1.
        max_phase: largest phase that :math:`\lambda` starts with, in radians.
        dtype: the dtype of the GEMM operands; see `GateOptions`. The readout's operand
            h has no bound: float16 overflows above 65504.

    Returns:
        A `Cell` whose carry is an `LRUCarry(re, im)`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if `skip` is unknown, or the ring, the phase or `projection` is out
            of range; from `init`, if the skip is diagonal and the sizes of input and
            output differ.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.lru(projection=3, skip="diagonal", r_min=0.9)
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> x = jnp.ones([2, 3])
        >>> carry, y = cell.step(params, cell.initial_carry(params, x), x)
        >>> carry.re.shape, y.shape
        ((2, 5), (2, 3))

    Reference:
        Orvieto et al., "Resurrecting recurrent neural networks for long sequences",
        2023, arXiv:2303.06349.
    """
    return _LRU(
        projection=projection,
        skip=skip,
        r_min=r_min,
        r_max=r_max,
        max_phase=max_phase,
        dtype=dtype,
    )
