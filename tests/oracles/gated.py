"""Cells with gates made of W x and U h."""

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def relu(a):
    return np.where(np.real(a) > 0, a, 0)


def layer_norm(a, gain, shift=0.0, epsilon=1e-5, centred=True):
    """Ba et al. 2016, equation 4, on one vector; Zhang and Sennrich 2019 uncentred."""
    mu = sum(a) / len(a) if centred else 0.0
    sigma = np.sqrt(sum((a - mu) ** 2) / len(a) + epsilon)
    return gain / sigma * (a - mu) + shift


def _apart(epsilon=1e-5, centred=True):
    """LN(W x) and LN(U h), over all gates."""

    def norm(params, wx, uh):
        return [
            layer_norm(
                a,
                params[f"norm_{name}"],
                params.get(f"norm_{name}_bias", 0.0),
                epsilon,
                centred,
            )
            for name, a in (("x", wx), ("h", uh))
        ]

    return norm


# Of the products; of the memory: as the output sees it, and whether so it is carried.
APART = {
    "ba2016": _apart(),
    "fastrnns": _apart(),  # pytorch/benchmarks/fastrnns/custom_lstms.py
    "tfa": _apart(1e-3),  # tensorflow_addons/rnn/layer_norm_lstm_cell.py
    "rms": _apart(1e-6, centred=False),
}
JOINED = {  # epsilon of LN(W x + U h), gate by gate
    "tf": 1e-12,  # tf.contrib.rnn.LayerNormBasicLSTMCell
    "praxis": 1e-8,  # praxis/layers/rnn_cell.py, LayerNormalizedLstmCellSimple
}
CARRIED = ("fastrnns", "tfa", "tf")
EPSILON = {"tfa": 1e-3, "tf": 1e-12, "rms": 1e-6}


def projections(params, x, h, gates, norm=None, heads=1):
    """W x and U h for one example, normalised if the dialect does so."""
    wx, uh = params["kernel"].T @ x, recurrent(params, h, gates, heads)
    return APART[norm](params, wx, uh) if norm in APART else (wx, uh)


def recurrent(params, h, gates, heads=1):
    """U h; with heads, block by block, then gate by gate over all heads.

    A `recurrent_mask` `[H]`, or `[gates, H]`, drops features of h (Gal and Ghahramani
    2016, equation 7; one for each gate is their untied version).
    """
    mask = np.broadcast_to(params.get("recurrent_mask", 1.0), (gates, len(h)))
    kernel = params["recurrent_kernel"].reshape(heads, len(h) // heads, -1)
    blocks = [
        [
            u.T @ (m * part)
            for u, m in zip(
                np.split(kernel[n], gates, axis=1),
                np.split(mask, heads, axis=1)[n],
                strict=True,
            )
        ]
        for n, part in enumerate(np.split(h, heads))
    ]
    return np.concatenate([block[g] for g in range(gates) for block in blocks])


def join(params, wx, uh, gate, norm=None):
    """The argument of one gate: Wu et al. 2016, equation 4, or a sum."""
    size = len(wx)
    at = slice(gate * size, (gate + 1) * size)
    if "alpha" in params:
        a = params["alpha"][at] * wx * uh
        a = a + params["beta1"][at] * uh + params["beta2"][at] * wx
    else:
        a = wx + uh
    if norm in JOINED:
        shift = params["norm_bias"][at] if "norm_bias" in params else 0.0
        a = layer_norm(a, params["norm"][at], shift, JOINED[norm])
    return a + params["bias"][at] if "bias" in params else a


def remember(params, c, norm):
    """The memory as it is carried, and as the output sees it."""
    if "norm_c" not in params:
        return c, c
    gain, shift = params["norm_c"], params.get("norm_c_bias", 0.0)
    seen = layer_norm(c, gain, shift, EPSILON.get(norm, 1e-5), norm != "rms")
    return (seen if norm in CARRIED else c), seen


def elman(activation, norm=None, heads=1):
    """Elman 1990: h = phi(W x + U h + b)."""

    def step(params, carry, x):
        (h,) = carry
        wx, uh = projections(params, x, h, 1, norm, heads)
        h = activation(join(params, wx, uh, 0, norm))
        return (h,), h

    return step


def lstm(norm=None, coupled=False, clip=np.inf, heads=1):
    """Hochreiter and Schmidhuber 1997 with Gers' forget gate and peepholes (2002).

    Coupled as in Greff et al. 2015; projected as in Sak et al. 2014.
    """

    def step(params, carry, x):
        h, c = carry
        gates = ("f", "g", "o") if coupled else ("i", "f", "g", "o")
        wx, uh = projections(params, x, h, len(gates), norm, heads)
        wx, uh = np.split(wx, len(gates)), np.split(uh, len(gates))
        a = {gate: join(params, wx[k], uh[k], k, norm) for k, gate in enumerate(gates)}
        for gate in ("i", "f"):
            if f"peephole_{gate}" in params:
                a[gate] = a[gate] + params[f"peephole_{gate}"] * c
        f = sigmoid(a["f"])
        i = 1 - f if coupled else sigmoid(a["i"])
        c = f * c + i * np.tanh(a["g"])
        c = np.where(np.abs(np.real(c)) <= clip, c, clip * np.sign(np.real(c)))
        c, seen = remember(params, c, norm)
        o = sigmoid(a["o"] + params.get("peephole_o", 0.0) * c)
        h = o * np.tanh(seen)
        if "projection" in params:
            h = params["projection"].T @ h
        return (h, c), h

    return step


def gru(norm=None, dialect="cudnn", heads=1):
    """Cho et al. 2014; in cuDNN the reset comes after the product, Haiku inverts z."""

    def step(params, carry, x):
        (h,) = carry
        wx, uh = projections(params, x, h, 3, norm, heads)
        (wr, wz, wn), (ur, uz, un) = np.split(wx, 3), np.split(uh, 3)
        r = sigmoid(join(params, wr, ur, 0, norm))
        z = sigmoid(join(params, wz, uz, 1, norm))
        if dialect == "cudnn":
            un = r * (un + params.get("recurrent_bias", 0.0))
        else:
            un = np.split(recurrent(params, r * h, 3, heads), 3)[2]
        n = np.tanh(join(params, wn, un, 2, norm))
        h = (1 - z) * h + z * n if dialect == "haiku" else (1 - z) * n + z * h
        return (h,), h

    return step


def residual(step):
    """The input added to the output, and not to the carry."""

    def with_input(params, carry, x):
        carry, y = step(params, carry, x)
        return carry, x + y

    return with_input


def highway(step):
    """Srivastava et al. 2015, equation 3, with the cell in the place of H."""

    def with_gate(params, carry, x):
        carry, y = step(params, carry, x)
        t = sigmoid(params["highway_kernel"].T @ x + params["highway_bias"])
        return carry, t * y + (1 - t) * x

    return with_gate


def zoneout(step, *rates):
    """Krueger et al. 2016, in evaluation: one rate for each field of the carry."""

    def with_rates(params, carry, x):
        new, _ = step(params, carry, x)
        zoned = tuple(
            rate * old + (1 - rate) * field
            for rate, old, field in zip(rates, carry, new, strict=True)
        )
        return zoned, zoned[0]

    return with_rates
