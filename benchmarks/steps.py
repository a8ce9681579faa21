"""The cells of the benchmark, written the way a user would write them.

Nothing here is written for speed: some steps concatenate `[x, h]`, gates are split from
one array, and layer norm spells out its mean and variance. The same functions run under
`lax.scan` and under `scanrnn.scan`.

Letters: T steps, B batch, D input features, H hidden features, O output features, S
the side of a picture.
Params are plain dicts. If only the kernels are in half precision, `dot` multiplies in
half precision and accumulates in float32, and everything else stays in float32. If all
arrays are in half precision, all results are, too; norms compute in float32.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Params = Mapping[str, jax.Array]


def dot(a, kernel):
    """Multiplies in the kernel's dtype; the result is as wide as the wider operand."""
    made = jnp.promote_types(a.dtype, kernel.dtype)
    return jnp.dot(a.astype(kernel.dtype), kernel, preferred_element_type=made)


def convolve(a, kernel):
    """Convolves `[B, S, S, D]` with a window `[3, 3, D, N]`; dtypes are as in `dot`."""
    return jax.lax.conv_general_dilated(
        a.astype(kernel.dtype),
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=jnp.promote_types(a.dtype, kernel.dtype),
    )


def layer_norm(u, eps=1e-5):
    """Scales rows to mean 0 and variance 1, computed in float32 as Flax's norms do."""
    wide = u.astype(jnp.promote_types(u.dtype, jnp.float32))
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    var = jnp.mean((wide - mean) ** 2, axis=-1, keepdims=True)
    return ((wide - mean) / jnp.sqrt(var + eps)).astype(u.dtype)


def lstm_pointwise(z, c):
    i, f, g, o = jnp.split(z, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o), c


def elman(params, h, x):
    h = jnp.tanh(dot(x, params["wx"]) + dot(h, params["wh"]) + params["b"])
    return h, h


def lstm(params, carry, x):
    h, c = carry
    z = dot(jnp.concatenate([x, h], axis=-1), params["w"]) + params["b"]
    o, c = lstm_pointwise(z, c)
    h = o * jnp.tanh(c)
    return (h, c), h


def gru(params, h, x):
    """The GRU of cuDNN and torch, which resets after its product."""
    xr, xz, xn = jnp.split(dot(x, params["wx"]) + params["b"], 3, axis=-1)
    hr, hz, hn = jnp.split(dot(h, params["wh"]), 3, axis=-1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * (hn + params["bn"]))
    h = (1 - z) * n + z * h
    return h, h


def seed_rnn(params, h, x):
    """A custom RNN: its readout reads the input and the *old* h."""
    z = jnp.concatenate([x, h], axis=-1)
    h = jnp.tanh(dot(z, params["w"]) + params["b"])
    y = dot(z, params["wo"]) + params["bo"]
    return h, y


def ln_lstm(params, carry, x):
    """Layer-norm LSTM of Ba, Kiros and Hinton (2016)."""
    h, c = carry
    zx = layer_norm(dot(x, params["wx"])) * params["gx"]
    zh = layer_norm(dot(h, params["wh"])) * params["gh"]
    o, c = lstm_pointwise(zx + zh + params["b"], c)
    h = o * jnp.tanh(layer_norm(c) * params["gc"] + params["bc"])
    return (h, c), h


def mi_lstm(params, carry, x):
    """Multiplicative-integration LSTM of Wu et al. (2016)."""
    h, c = carry
    zx, zh = dot(x, params["wx"]), dot(h, params["wh"])
    z = params["alpha"] * zx * zh + params["beta1"] * zh + params["beta2"] * zx
    o, c = lstm_pointwise(z + params["b"], c)
    h = o * jnp.tanh(c)
    return (h, c), h


def res_lstm(params, carry, x):
    """LSTM with a residual connection around it (D = H)."""
    carry, h = lstm(params, carry, x)
    return carry, x + h


def ln_mi_res_lstm(params, carry, x):
    """LSTM with layer norm, multiplicative integration and a residual connection."""
    h, c = carry
    zx = layer_norm(dot(x, params["wx"])) * params["gx"]
    zh = layer_norm(dot(h, params["wh"])) * params["gh"]
    z = params["alpha"] * zx * zh + params["beta1"] * zh + params["beta2"] * zx
    o, c = lstm_pointwise(z + params["b"], c)
    h = o * jnp.tanh(layer_norm(c) * params["gc"] + params["bc"])
    return (h, c), x + h


def conv_lstm(params, carry, x):
    """Convolutional LSTM of Shi et al. (2015), without peepholes."""
    h, c = carry
    z = convolve(x, params["wx"]) + convolve(h, params["wh"]) + params["b"]
    o, c = lstm_pointwise(z, c)
    h = o * jnp.tanh(c)
    return (h, c), h


class Cell(NamedTuple):
    """One row of the table below.

    Attributes:
      step: `step(params, carry, x) -> (carry, y)`.
      carries: how many `[B, H]` arrays the carry holds.
      shapes: `(D, H) -> {name: shape}` of the params.
      columns: `columns(H)` gives the output columns of the GEMMs that read x, and of
        those that read h; a convolution counts them for each place of its window.
    """

    step: Callable
    carries: int
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]
    columns: Callable[[int], tuple[int, int]]


def _separate(gates, **vectors):
    """Shapes of `wx`, `wh` and of vectors; numbers are multiples of H."""
    return lambda D, H: {
        "wx": (D, gates * H),
        "wh": (H, gates * H),
        **{name: (multiple * H,) for name, multiple in vectors.items()},
    }


def _joint(**columns):
    """Shapes of kernels over `[x; h]` and of biases; numbers are multiples of H."""
    return lambda D, H: {
        name: (D + H, multiple * H) if name.startswith("w") else (multiple * H,)
        for name, multiple in columns.items()
    }


def _windows(D, H):
    return {"wx": (3, 3, D, 4 * H), "wh": (3, 3, H, 4 * H), "b": (4 * H,)}


_LN = {"gx": 4, "gh": 4, "b": 4, "gc": 1, "bc": 1}
_MI = {"alpha": 4, "beta1": 4, "beta2": 4, "b": 4}

CELLS = {
    "elman": Cell(elman, 1, _separate(1, b=1), lambda H: (H, H)),
    "lstm": Cell(lstm, 2, _joint(w=4, b=4), lambda H: (4 * H, 4 * H)),
    "gru": Cell(gru, 1, _separate(3, b=3, bn=1), lambda H: (3 * H, 3 * H)),
    "seed_rnn": Cell(
        seed_rnn, 1, _joint(w=1, b=1, wo=1, bo=1), lambda H: (2 * H, 2 * H)
    ),
    "ln_lstm": Cell(ln_lstm, 2, _separate(4, **_LN), lambda H: (4 * H, 4 * H)),
    "mi_lstm": Cell(mi_lstm, 2, _separate(4, **_MI), lambda H: (4 * H, 4 * H)),
    "res_lstm": Cell(res_lstm, 2, _joint(w=4, b=4), lambda H: (4 * H, 4 * H)),
    "ln_mi_res_lstm": Cell(
        ln_mi_res_lstm, 2, _separate(4, **(_LN | _MI)), lambda H: (4 * H, 4 * H)
    ),
    "conv_lstm": Cell(conv_lstm, 2, _windows, lambda H: (9 * 4 * H, 9 * 4 * H)),
}

CUSTOM = ("ln_lstm", "mi_lstm", "res_lstm", "ln_mi_res_lstm")


def init(cell: str, D: int, H: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 parameters: kernels and biases from U(+-1/sqrt(H)), gains around 0.5.

    With gains around 1, layer norm and multiplicative integration together are chaotic
    over hundreds of steps: no two float32 programs would agree.
    """
    rng = np.random.default_rng(seed)
    params = {}
    for name, shape in CELLS[cell].shapes(D, H).items():
        gain = 0.5 if name.startswith(("g", "alpha", "beta")) else 0.0
        noise = rng.uniform(-1, 1, shape) / np.sqrt(H)
        params[name] = (noise + gain).astype(np.float32)
    return params


def unrolled(cell: str, scan: Callable, throughout: bool = False) -> Callable:
    """`apply(params, xs) -> ys` of a cell, from zero carries, by the given `scan`.

    Carries are at least float32; with `throughout` they have the dtype of xs.
    """
    row = CELLS[cell]

    def apply(params, xs):
        hidden = _hidden(params, xs.shape[-1])
        wide = jnp.promote_types(xs.dtype, jnp.float32)
        dtype = xs.dtype if throughout else wide
        zeros = jnp.zeros((*xs.shape[1:-1], hidden), dtype)
        init = zeros if row.carries == 1 else (zeros,) * row.carries
        return scan(lambda carry, x: row.step(params, carry, x), init, xs)[1]

    return apply


def _hidden(params, in_features):
    if "wh" in params:
        return params["wh"].shape[-2]
    return params["w"].shape[0] - in_features
