"""Inference over time: Kalman filters, the forward algorithm of an HMM, averages."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jax.scipy.stats import multivariate_normal
from scipy.linalg import solve_discrete_are

from benchmarks.programs._base import Program, normal


def _kalman(params, observed):
    """A Kalman filter that gives means and likelihoods and carries the covariance."""
    F, H = params["F"], params["H"]
    Q, R = (jnp.diag(jnp.exp(params[name])) for name in ("log_q", "log_r"))

    def step(carry, y):
        mean, cov = carry
        mean, cov = F @ mean, F @ cov @ F.T + Q
        S = H @ cov @ H.T + R
        likelihood = multivariate_normal.logpdf(y, H @ mean, S)
        gain = jax.scipy.linalg.solve(S, H @ cov, assume_a="pos").T
        mean = mean + gain @ (y - H @ mean)
        cov = cov - gain @ S @ gain.T
        return (mean, (cov + cov.T) / 2), (mean, likelihood)

    def one(ys):
        N = F.shape[0]
        _, (means, likelihoods) = lax.scan(step, (jnp.zeros(N), jnp.eye(N)), ys)
        return jnp.concatenate([means, likelihoods[:, None]], axis=-1)

    return jax.vmap(one)(observed)


def kalman(T=256, B=32, N=16, M=8):
    """A filter with states of `N` numbers and observations of `M` numbers."""
    turned, _ = np.linalg.qr(normal(N, N))
    params = {
        "F": 0.95 * turned,
        "H": normal(M, N, scale=N**-0.5),
        "log_q": np.full(N, -2, np.float32),
        "log_r": np.full(M, -1, np.float32),
    }
    return Program(f"T={T} B={B} N={N} M={M}", params, normal(B, T, M), _kalman)


def _fixed_gain(params, observed):
    """A Kalman filter whose gain does not change."""
    F, H, gain = params["F"], params["H"], params["gain"]

    def step(mean, y):
        mean = F @ mean
        mean = mean + gain @ (y - H @ mean)
        return mean, mean

    first = jnp.zeros(F.shape[0])
    return jax.vmap(lambda ys: lax.scan(step, first, ys)[1])(observed)


def fixed_gain(T=2048, B=8, N=4, M=2):
    """A tracker with states of `N` numbers and observations of `M` numbers."""
    turned, _ = np.linalg.qr(normal(N, N))
    F, H, R = 0.95 * turned, normal(M, N, scale=N**-0.5), np.eye(M)
    # The gain that a filter of these matrices tends to: with others it may diverge.
    cov = solve_discrete_are(F.T, H.T, 0.1 * np.eye(N), R)
    gain = np.linalg.solve(H @ cov @ H.T + R, H @ cov).T.astype(np.float32)
    params = {"F": F, "H": H, "gain": gain}
    return Program(f"T={T} B={B} N={N} M={M}", params, normal(B, T, M), _fixed_gain)


def _averages(params, gradients):
    """Adam's updates from a series of gradients, which are clipped smoothly."""

    def step(carry, g):
        count, m, v = carry
        g = jnp.tanh(params["scale"] * g)
        count, m, v = count + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        m_hat, v_hat = m / (1 - 0.9**count), v / (1 - 0.999**count)
        return (count, m, v), m_hat / (jnp.sqrt(v_hat) + 1e-8)

    zeros = jnp.zeros_like(gradients[0])
    return lax.scan(step, (jnp.zeros(()), zeros, zeros), gradients)[1]


def averages(T=2048, D=256):
    """`T` gradients of `D` weights."""
    params = {"scale": np.ones(D, np.float32)}
    return Program(f"T={T} D={D}", params, normal(T, D), _averages)


def _forward_algorithm(params, observed):
    """Sums probabilities by their logarithms, over `[B, K, K]` at each step."""
    means, precisions = params["means"], jnp.exp(params["log_precisions"])
    transitions = jax.nn.log_softmax(params["transitions"])

    def step(log_alpha, x):
        errors = (x[:, None, :] - means) ** 2 * precisions
        emitted = -0.5 * (errors - params["log_precisions"]).sum(-1)
        moved = logsumexp(log_alpha[:, :, None] + transitions, axis=1)
        log_alpha = moved + emitted
        likelihood = logsumexp(log_alpha, axis=-1, keepdims=True)
        return log_alpha - likelihood, likelihood

    K = transitions.shape[0]
    first = jnp.full((observed.shape[1], K), -jnp.log(K))
    return lax.scan(step, first, observed)[1]


def forward_algorithm(T=512, B=16, K=64, D=16):
    """An HMM with `K` hidden states, each of which emits `D` normal numbers."""
    params = {
        "means": normal(K, D),
        "log_precisions": np.zeros((K, D), np.float32),
        "transitions": normal(K, K),
    }
    sizes = f"T={T} B={B} D={D}, {K} states"
    return Program(sizes, params, normal(T, B, D), _forward_algorithm)


PROGRAMS = {
    "Kalman filter": kalman,
    "Kalman filter with a fixed gain": fixed_gain,
    "hidden Markov model": forward_algorithm,
    "averages of an optimiser": averages,
}
