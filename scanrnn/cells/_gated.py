"""What the Elman cell, the LSTM and the GRU share: parameters, norm, integration."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision
from scanrnn.cells._cell import Cell

NORMS = (None, "ba2016")
INTEGRATIONS = ("additive", "multiplicative")

_EPSILON = 1e-5  # of the layer norm, as in the "ba2016" dialect

_CONSTANTS = {  # how the parameters that are not drawn start
    "recurrent_bias": 0.0,
    "norm_x": 1.0,
    "norm_h": 1.0,
    "norm_c": 1.0,
    "norm_c_bias": 0.0,
    "alpha": 1.0,
    "beta1": 0.5,
    "beta2": 0.5,
}


def layer_norm(u, gain):
    """Layer norm over the last axis, with a gain and no bias.

    `gain * (u - mean(u)) / sqrt(var(u) + eps)`
    """
    centred = u - jnp.mean(u, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return gain * centred * jax.lax.rsqrt(variance + _EPSILON)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedCell(Cell):
    """A cell with one GEMM on x, one GEMM on h, and gates made from their sum.

    Attributes:
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        dtype: of the GEMM operands, or None.
    """

    name: ClassVar[str]
    gates: ClassVar[tuple[str, ...]]  # their order along the G*H axis
    carry_type: ClassVar[Any]

    norm: str | None = None
    integration: str = "additive"
    dtype: Any = None

    def __post_init__(self):
        """Refuse unknown options."""
        _checks.check_option(self.name, "norm", self.norm, NORMS)
        _checks.check_option(self.name, "integration", self.integration, INTEGRATIONS)

    def own_shapes(self, hidden_features):
        """Shapes of the parameters that only this cell has."""
        del hidden_features
        return {}

    def gate_biases(self):
        """What `init` adds to the bias of a gate, by the gate's name."""
        return {}

    def shapes(self, in_features, hidden_features):
        """Shapes of all parameters, by name."""
        gated = len(self.gates) * hidden_features
        shapes = {
            "kernel": (in_features, gated),
            "recurrent_kernel": (hidden_features, gated),
            "bias": (gated,),
        }
        if self.norm is not None:
            shapes |= {"norm_x": (gated,), "norm_h": (gated,)}
        if self.integration == "multiplicative":
            shapes |= {"alpha": (gated,), "beta1": (gated,), "beta2": (gated,)}
        return shapes | self.own_shapes(hidden_features)

    def init(
        self,
        key,
        in_features,
        hidden_features,
        dtype=jnp.float32,
        *,
        kernel_init=jax.nn.initializers.lecun_normal(),  # noqa: B008 (a pure function)
        recurrent_kernel_init=jax.nn.initializers.orthogonal(),  # noqa: B008
        bias_init=jax.nn.initializers.zeros,
    ):
        """Draw the parameters; see `Cell.init`.

        `recurrent_kernel_init` draws one `[H, H]` block per gate. All are drawn in
        float32 or wider and then cast: a QR decomposition has no half precision.
        """
        _checks.check_size(self.name, "in_features", in_features)
        _checks.check_size(self.name, "hidden_features", hidden_features)
        _checks.check_floating(self.name, "dtype", dtype)
        for name, value in (
            ("kernel_init", kernel_init),
            ("recurrent_kernel_init", recurrent_kernel_init),
            ("bias_init", bias_init),
        ):
            _checks.check_initializer(self.name, name, value)
        shapes = self.shapes(in_features, hidden_features)
        wide = _precision.widest(dtype)
        key, recurrent_key, bias_key = jax.random.split(key, 3)
        square = (hidden_features, hidden_features)
        blocks = [
            recurrent_kernel_init(gate_key, square, wide)
            for gate_key in jax.random.split(recurrent_key, len(self.gates))
        ]
        extra = self.gate_biases()
        offset = jnp.array([extra.get(gate, 0.0) for gate in self.gates], wide)
        params = {
            "kernel": kernel_init(key, shapes["kernel"], wide),
            "recurrent_kernel": jnp.concatenate(blocks, axis=-1),
            "bias": bias_init(bias_key, shapes["bias"], wide)
            + jnp.repeat(offset, hidden_features),
        }
        for name in shapes.keys() - params.keys():
            params[name] = jnp.full(shapes[name], _CONSTANTS[name])
        return {name: params[name].astype(dtype) for name in shapes}

    def initial_carry(self, params, x, dtype=None):
        """Zeros that are sharded as `x` is; see `Cell.initial_carry`."""
        x = jnp.asarray(x)
        _checks.check_params(self.name, params, x, self.shapes)
        if dtype is None:
            dtype = _precision.pointwise_dtype(params, x)
        _checks.check_floating(self.name, "dtype", dtype)
        # Zeros *like* a reduction of x have its sharding and its varying mesh axes;
        # its value is not used, so the compiler drops the reduction.
        zeros = jnp.zeros_like(jnp.sum(x, axis=-1, keepdims=True), dtype=dtype)
        hidden_features = params["recurrent_kernel"].shape[0]
        zeros = jnp.broadcast_to(zeros, (*x.shape[:-1], hidden_features))
        return self.carry_type(*[zeros for _ in self.carry_type._fields])

    def project(self, params, carry, x):
        """The two GEMMs of a step, normalised if the cell is.

        Returns:
            Wx `[..., G*H]`, Uh `[..., G*H]`, the parameter vectors by name, and the
            carry, all in the dtype of pointwise arithmetic.
        """
        x = jnp.asarray(x)
        _checks.check_params(self.name, params, x, self.shapes)
        shape = (*x.shape[:-1], params["recurrent_kernel"].shape[0])
        _checks.check_carry(self.name, carry, self.carry_type, shape)
        dtype = _precision.pointwise_dtype(params, carry, x)
        wx = _precision.matmul(x, params["kernel"], self.dtype).astype(dtype)
        uh = _precision.matmul(carry.h, params["recurrent_kernel"], self.dtype)
        uh = uh.astype(dtype)
        p = _precision.vectors(params, like=wx)
        if self.norm is not None:
            wx, uh = layer_norm(wx, p["norm_x"]), layer_norm(uh, p["norm_h"])
        return wx, uh, p, _precision.widen(carry, dtype)

    def integrate(self, wx, uh, p, part=slice(None)):
        """Join the two projections: their sum, or multiplicative integration.

        Args:
            wx: Wx, or the `part` of it that belongs to some gates.
            uh: Uh, likewise.
            p: parameter vectors, of all gates.
            part: slice of the G*H axis that `wx` and `uh` are.
        """
        p = {name: p[name][..., part] for name in _JOINING if name in p}
        if self.integration == "additive":
            return wx + uh + p["bias"]
        return p["alpha"] * wx * uh + p["beta1"] * uh + p["beta2"] * wx + p["bias"]


_JOINING = ("bias", "alpha", "beta1", "beta2")
