"""Cells whose matrices never meet the carry."""

import numpy as np

from tests.oracles.gated import sigmoid


def sru(activation=lambda c: c, highway_bias=0.0, scaled=True):
    """Lei et al. 2018, the equations of their section on SRU, with alpha."""
    alpha = (1 + 2 * np.exp(highway_bias)) ** 0.5 if scaled else 1.0

    def step(params, carry, x):
        (c,) = carry
        w, f, r = np.split(params["kernel"].T @ x, 3)
        b_f, b_r = np.split(params["bias"], 2)
        if "peephole_f" in params:
            f = f + params["peephole_f"] * c
            r = r + params["peephole_r"] * c
        f, r = sigmoid(f + b_f), sigmoid(r + b_r)
        c = f * c + (1 - f) * w
        skip = params["skip_kernel"].T @ x if "skip_kernel" in params else x
        return (c,), r * activation(c) + (1 - r) * skip * alpha

    return step


def qrnn(pooling="fo", inverted=False):
    """Bradbury et al. 2016, equations 1 to 5; what the last x gave is carried."""

    def step(params, carry, x):
        c, *previous = carry
        a = params["kernel"].T @ x + params["bias"]
        if previous:
            a = a + previous[0]
            previous = [params["previous_kernel"].T @ x]
        z, f, *gates = np.split(a, 1 + len(pooling))
        z, f, gates = np.tanh(z), sigmoid(f), [sigmoid(gate) for gate in gates]
        f = 1 - f if inverted else f
        c = f * c + (gates[1] if pooling == "ifo" else 1 - f) * z
        h = c if pooling == "f" else gates[0] * c
        return (c, *previous), h

    return step
