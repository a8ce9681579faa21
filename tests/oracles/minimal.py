"""Cells with fewer gates than an LSTM, or with more layers in a step."""

import numpy as np

from tests.oracles.gated import join, projections, recurrent, remember, sigmoid


def mgu(norm=None, dialect="flax", heads=1):
    """Zhou et al. 2016, their table of MGU; flax.linen.MGUCell, which inverts f."""

    def step(params, carry, x):
        (h,) = carry
        wx, uh = projections(params, x, h, 2, norm, heads)
        (wf, wn), (uf, un) = np.split(wx, 2), np.split(uh, 2)
        f = sigmoid(join(params, wf, uf, 0, norm))
        if dialect == "flax":
            un = f * (un + params.get("recurrent_bias", 0.0))
            n = np.tanh(join(params, wn, un, 1, norm))
            h = (1 - f) * n + f * h
        else:
            un = np.split(recurrent(params, f * h, 2, heads), 2)[1]
            n = np.tanh(join(params, wn, un, 1, norm))
            h = (1 - f) * h + f * n
        return (h,), h

    return step


def ugrnn(norm=None, heads=1):
    """Collins et al. 2016, the update gate RNN of their section on architectures."""

    def step(params, carry, x):
        (h,) = carry
        wx, uh = projections(params, x, h, 2, norm, heads)
        (wg, wc), (ug, uc) = np.split(wx, 2), np.split(uh, 2)
        g = sigmoid(join(params, wg, ug, 0, norm))
        c = np.tanh(join(params, wc, uc, 1, norm))
        h = g * h + (1 - g) * c
        return (h,), h

    return step


def indrnn(activation):
    """Li et al. 2018, equation 2: h = phi(W x + u * h + b)."""

    def step(params, carry, x):
        (h,) = carry
        uh = np.array(
            [u * own for u, own in zip(params["recurrent_kernel"], h, strict=True)]
        )
        h = activation(join(params, params["kernel"].T @ x, uh, 0))
        return (h,), h

    return step


def multiplicative_lstm(norm=None, dialect="krause2017"):
    """Krause et al. 2016: an LSTM with m = (W_mx x) * (W_mh h) in the place of h."""

    def step(params, carry, x):
        h, c = carry
        m = (params["kernel_m"].T @ x) * (params["recurrent_kernel_m"].T @ h)
        wx, um = projections(params, x, m, 4, norm)
        wx, um = np.split(wx, 4), np.split(um, 4)
        i, f, g, o = (join(params, wx[k], um[k], k, norm) for k in range(4))
        g = np.tanh(g) if dialect == "krause2017" else g
        c, seen = remember(params, sigmoid(f) * c + sigmoid(i) * g, norm)
        if dialect == "krause2017":
            h = np.tanh(seen) * sigmoid(o)
        else:
            h = np.tanh(seen * sigmoid(o))
        return (h, c), h

    return step


def rhn(depth, coupled=True):
    """Zilly et al. 2016: s = h t + s c, layer by layer, with x in the first alone."""

    def step(params, carry, x):
        (s,) = carry
        gates = 2 if coupled else 3
        for layer in range(depth):
            a = params["recurrent_kernel"][layer].T @ s + params["bias"][layer]
            if layer == 0:
                a = a + params["kernel"].T @ x
            parts = np.split(a, gates)
            h, t = np.tanh(parts[0]), sigmoid(parts[1])
            c = 1 - t if coupled else sigmoid(parts[2])
            s = h * t + s * c
        return (s,), s

    return step
