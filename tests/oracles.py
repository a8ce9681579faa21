"""Recurrent cells in NumPy, written from their papers: what `scanrnn.cells` must equal.

They loop over time, examples and gates, share no code with the package, and work on
complex numbers as well, so that a complex step gives their derivatives to the last bit.
A cell is a function of params, a carry (a tuple of vectors) and a vector x.
"""

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def relu(a):
    return np.where(np.real(a) > 0, a, 0)


def layer_norm(a, gain):
    """Ba et al. 2016, equation 4, on one vector, without the bias."""
    mu = sum(a) / len(a)
    sigma = np.sqrt(sum((a - mu) ** 2) / len(a) + 1e-5)
    return gain / sigma * (a - mu)


def projections(params, x, h):
    """W x and U h for one example, normalised if the params have the gains."""
    wx, uh = params["kernel"].T @ x, params["recurrent_kernel"].T @ h
    if "norm_x" in params:
        wx, uh = layer_norm(wx, params["norm_x"]), layer_norm(uh, params["norm_h"])
    return wx, uh


def join(params, wx, uh, gate, size):
    """The argument of one gate: Wu et al. 2016, equation 4, or a sum."""
    at = slice(gate * size, (gate + 1) * size)
    if "alpha" not in params:
        return wx + uh + params["bias"][at]
    product = params["alpha"][at] * wx * uh
    return (product + params["beta1"][at] * uh + params["beta2"][at] * wx) + params[
        "bias"
    ][at]


def elman(activation):
    """Elman 1990: h = phi(W x + U h + b)."""

    def step(params, carry, x):
        (h,) = carry
        wx, uh = projections(params, x, h)
        h = activation(join(params, wx, uh, 0, len(h)))
        return (h,), h

    return step


def lstm(params, carry, x):
    """Hochreiter and Schmidhuber 1997 with Gers' forget gate; LN as Ba et al. 2016."""
    h, c = carry
    wx, uh = projections(params, x, h)
    wx, uh = np.split(wx, 4), np.split(uh, 4)
    i, f, g, o = (join(params, wx[k], uh[k], k, len(h)) for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    seen = c
    if "norm_c" in params:
        seen = layer_norm(c, params["norm_c"]) + params["norm_c_bias"]
    h = sigmoid(o) * np.tanh(seen)
    return (h, c), h


def gru(params, carry, x):
    """Cho et al. 2014, with the reset after the product, as in cuDNN."""
    (h,) = carry
    wx, uh = projections(params, x, h)
    (wr, wz, wn), (ur, uz, un) = np.split(wx, 3), np.split(uh, 3)
    r = sigmoid(join(params, wr, ur, 0, len(h)))
    z = sigmoid(join(params, wz, uz, 1, len(h)))
    n = np.tanh(join(params, wn, r * (un + params["recurrent_bias"]), 2, len(h)))
    h = (1 - z) * n + z * h
    return (h,), h


def residual(step):
    """The input added to the output, and not to the carry."""

    def with_input(params, carry, x):
        carry, y = step(params, carry, x)
        return carry, x + y

    return with_input


def run(step, params, xs, carry):
    """Go over `xs` `[T, B, D]`, example by example.

    Returns:
        The last carry, a tuple of `[B, H]`, and the outputs `[T, B, H]`.
    """
    carries, outputs = [], []
    for example in range(xs.shape[1]):
        state, ys = tuple(field[example] for field in carry), []
        for x in xs[:, example]:
            state, y = step(params, state, x)
            ys.append(y)
        carries.append(state)
        outputs.append(ys)
    last = tuple(np.stack(field) for field in zip(*carries, strict=True))
    return last, np.stack(outputs, axis=1)


def gradient(function, tree):
    """The derivative of a scalar function of a dict of arrays, by complex steps.

    It is exact to rounding: there is no difference to cancel.
    """
    step = 1e-30
    gradients = {}
    for name, value in tree.items():
        gradients[name] = np.zeros(value.shape)
        for index in np.ndindex(value.shape):
            nudged = value.astype(complex)
            nudged[index] += 1j * step
            slope = np.imag(function({**tree, name: nudged})) / step
            gradients[name][index] = slope
    return gradients
