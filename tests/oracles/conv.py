"""Cells with convolutions in the place of matrix products."""

import numpy as np

from tests.oracles.gated import sigmoid


def convolve(x, kernel):
    """A window over one example: [*spatial, C] under [*window, C, N].

    Place by place and tap by tap; what is outside is zero. So it is no convolution of
    the books, whose kernel is turned round: the cross-correlation that all libraries
    mean. A window of even size looks one place further forward than back.
    """
    *window, _, features = kernel.shape
    out = np.zeros((*x.shape[:-1], features), np.result_type(x, kernel))
    for place in np.ndindex(*x.shape[:-1]):
        for tap in np.ndindex(*window):
            at = [
                p + t - (k - 1) // 2 for p, t, k in zip(place, tap, window, strict=True)
            ]
            if all(0 <= a < size for a, size in zip(at, x.shape[:-1], strict=True)):
                out[place] += kernel[tap].T @ x[tuple(at)]
    return out


def lstm(params, carry, x):
    """Shi et al. 2015, equation 3; peepholes by channel, as with Gers et al. 2002."""
    h, c = carry
    a = convolve(x, params["kernel"]) + convolve(h, params["recurrent_kernel"])
    i, f, g, o = np.split(a + params["bias"], 4, axis=-1)
    if "peephole_i" in params:
        i, f = i + params["peephole_i"] * c, f + params["peephole_f"] * c
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    if "peephole_o" in params:
        o = o + params["peephole_o"] * c
    h = sigmoid(o) * np.tanh(c)
    return (h, c), h


def gru(params, carry, x):
    """Ballas et al. 2015, section 3.1, with biases."""
    (h,) = carry
    w_r, w_z, w_n = np.split(params["kernel"], 3, axis=-1)
    u_r, u_z, u_n = np.split(params["recurrent_kernel"], 3, axis=-1)
    b_r, b_z, b_n = np.split(params["bias"], 3)
    z = sigmoid(convolve(x, w_z) + convolve(h, u_z) + b_z)
    r = sigmoid(convolve(x, w_r) + convolve(h, u_r) + b_r)
    n = np.tanh(convolve(x, w_n) + convolve(r * h, u_n) + b_n)
    h = (1 - z) * h + z * n
    return (h,), h


def gru_reset_after(params, carry, x):
    """cuDNN's GRU, with convolutions."""
    (h,) = carry
    w_r, w_z, w_n = np.split(params["kernel"], 3, axis=-1)
    u_r, u_z, u_n = np.split(params["recurrent_kernel"], 3, axis=-1)
    b_r, b_z, b_n = np.split(params["bias"], 3)
    r = sigmoid(convolve(x, w_r) + convolve(h, u_r) + b_r)
    z = sigmoid(convolve(x, w_z) + convolve(h, u_z) + b_z)
    n = convolve(x, w_n) + b_n + r * (convolve(h, u_n) + params["recurrent_bias"])
    h = (1 - z) * np.tanh(n) + z * h
    return (h,), h
