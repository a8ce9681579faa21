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
