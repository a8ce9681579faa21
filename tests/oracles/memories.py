"""Linear attention and state spaces with a matrix for every head, from their papers.

Each step goes over the heads; memories have a row for every feature of the values.
"""

import numpy as np

from tests.oracles.gated import sigmoid


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.log(1 + np.exp(x))


def unit(k):
    return k / np.sqrt(np.sum(k**2) + 1e-6)


def projections(params, x):
    return np.split(params["kernel"].T @ x, 3)


def over_heads(carry, step):
    """`step(head, features of the head, memory) -> (memory, output)`."""
    (memories,) = carry
    width = memories.shape[1]
    made = [
        step(head, slice(head * width, (head + 1) * width), S)
        for head, S in enumerate(memories)
    ]
    new, outputs = zip(*made, strict=True)
    return (np.stack(new),), np.concatenate(outputs)


def gla(params, carry, x):
    """Yang et al. 2023: the recurrent form, with gates of low rank."""
    q, k, v = projections(params, x)
    gate = params["gate_up"].T @ (params["gate_down"].T @ x) + params["gate_bias"]
    alpha = sigmoid(gate) ** (1 / 16)

    def step(head, at, S):
        S = S @ np.diag(alpha[at]) + np.outer(v[at], k[at])
        return S, S @ q[at] / np.sqrt(len(q[at]))

    return over_heads(carry, step)


def deltanet(gated=False):
    """Yang et al. 2024; gated as in Yang, Kautz, Hatamizadeh 2024."""

    def cell(params, carry, x):
        q, k, v = projections(params, x)
        beta = sigmoid(params["rate_kernel"].T @ x)
        alpha = np.ones(len(beta))
        if gated:
            step_size = softplus(params["step_kernel"].T @ x + params["step_bias"])
            alpha = np.exp(-np.exp(params["decay"]) * step_size)

        def step(head, at, S):
            key, query = unit(silu(k[at])), unit(silu(q[at]))
            keep = np.eye(len(key)) - beta[head] * np.outer(key, key)
            S = alpha[head] * S @ keep + beta[head] * np.outer(v[at], key)
            return S, S @ query

        return over_heads(carry, step)

    return cell


def rwkv7(params, carry, x):
    """Peng et al. 2025: the state and what reads it, with no token shift."""
    r, k, v = projections(params, x)
    d = params["decay_up"].T @ np.tanh(params["decay_down"].T @ x)
    w = np.exp(-np.exp(-0.5) * sigmoid(d + params["decay_bias"]))
    a = params["rate_up"].T @ (params["rate_down"].T @ x) + params["rate_bias"]
    a = sigmoid(a)
    removal = k * params["removal"]
    new = k * (1 - params["replacement"] + a * params["replacement"])

    def step(head, at, S):
        kappa = unit(removal[at])
        S = S @ (np.diag(w[at]) - np.outer(kappa, a[at] * kappa))
        S = S + np.outer(v[at], new[at])
        bonus = np.sum(r[at] * params["bonus"][at] * new[at])
        return S, normal(S @ r[at], at) + bonus * v[at]

    def normal(h, at):
        if "norm" not in params:
            return h
        h = h - np.mean(h)
        h = h / np.sqrt(np.mean(h**2) + 64e-5)  # `var` is real for complex numbers
        return params["norm"][at] * h + params["norm_bias"][at]

    return over_heads(carry, step)


def mamba2(params, carry, x):
    """Dao and Gu 2024: the state space with one factor for every head."""
    u = params["kernel"].T @ x
    B, C = np.split(params["state_kernel"].T @ x, 2)
    delta = softplus(params["step_kernel"].T @ x + params["step_bias"])

    def step(head, at, S):
        A = -np.exp(params["decay"][head])
        S = np.exp(delta[head] * A) * S + delta[head] * np.outer(u[at], B)
        return S, S @ C + params["skip"][head] * u[at]

    return over_heads(carry, step)
