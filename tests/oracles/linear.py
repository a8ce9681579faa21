"""Cells whose recurrence is linear in the carry."""

import numpy as np

from tests.oracles.gated import sigmoid


def g(v):
    """Feng et al. 2024, appendix B: keeps the candidate positive."""
    return np.where(np.real(v) >= 0, v + 0.5, sigmoid(v))


def identity(v):
    return v


def mingru(candidate=identity):
    """Feng et al. 2024, section 3.1; with g, appendix B."""

    def step(params, carry, x):
        (h,) = carry
        z, v = np.split(params["kernel"].T @ x + params["bias"], 2)
        z = sigmoid(z)
        h = (1 - z) * h + z * candidate(v)
        return (h,), h

    return step


def minlstm(candidate=identity):
    """Feng et al. 2024, section 3.2; with g, appendix B."""

    def step(params, carry, x):
        (h,) = carry
        f, i, v = np.split(params["kernel"].T @ x + params["bias"], 3)
        f, i = sigmoid(f), sigmoid(i)
        h = f / (f + i) * h + i / (f + i) * candidate(v)
        return (h,), h

    return step


def lru(params, carry, x):
    """Orvieto et al. 2023, section 3 and appendix A, on parts of complex numbers.

    The parts are told apart by a matrix [[a, -b], [b, a]] in the place of a + ib: a
    complex step has the imaginary unit for itself.
    """
    states = len(carry[0])
    h = np.stack(carry, axis=-1)
    bx = np.stack(np.split(params["kernel"].T @ x, 2), axis=-1)
    rows = []
    for n in range(states):
        radius = np.exp(-np.exp(params["nu"][n]))
        phase = np.exp(params["theta"][n])
        turn = np.array(
            [[np.cos(phase), -np.sin(phase)], [np.sin(phase), np.cos(phase)]]
        )
        rows.append(radius * turn @ h[n] + np.exp(params["gamma"][n]) * bx[n])
    re, im = np.stack(rows, axis=-1)
    c_re, c_im = np.split(params["readout"], 2)
    skip = params["skip"]
    fed = skip.T @ x if skip.ndim == 2 else skip * x
    return (re, im), c_re.T @ re - c_im.T @ im + fed


def rglru(heads=1):
    """De et al. 2024, equations 1 to 4 and 6, with the appendix's sign of Lambda."""

    def step(params, carry, x):
        (h,) = carry
        kernel = params["kernel"].reshape(heads, len(x) // heads, -1)
        blocks = [kernel[n].T @ part for n, part in enumerate(np.split(x, heads))]
        r, i = (np.concatenate([np.split(b, 2)[k] for b in blocks]) for k in range(2))
        bias_r, bias_i = np.split(params["bias"], 2)
        r, i = sigmoid(r + bias_r), sigmoid(i + bias_i)
        a = np.exp(-8 * np.log(1 + np.exp(params["decay"])) * r)
        h = a * h + np.sqrt(1 - a**2) * (i * x)
        return (h,), h

    return step
