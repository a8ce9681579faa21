"""An LSTM's loop, forward and backward, written by hand and compiled by Numba.

The forum thread (see `suite`) asks whether Numba or Cython would help. An expert writes
it like this: products with inputs before the loop, gradients of weights after it, one
fused pass over the gates in each step, and a backward loop derived on paper.
"""

import numba
import numpy as np

from benchmarks.contenders._base import Contender


@numba.njit(inline="always")
def sigmoid(x):
    return np.float32(1) / (np.float32(1) + np.exp(-x))


@numba.njit(fastmath=True)
def forward(w, b, xs, gates, cs, hs):
    """Fills the gates `[T, B, 4H]` (i, f, g, o) and the states `[T + 1, B, H]`."""
    T, B, D = xs.shape
    H = hs.shape[2]
    from_x = np.dot(xs.reshape(T * B, D), w[:D]).reshape(T, B, 4 * H)
    for t in range(T):
        z = np.dot(hs[t], w[D:])
        for n in range(B):
            u, gate = from_x[t, n], gates[t, n]
            for k in range(H):
                i = sigmoid(u[k] + z[n, k] + b[k])
                f = sigmoid(u[H + k] + z[n, H + k] + b[H + k])
                g = np.tanh(u[2 * H + k] + z[n, 2 * H + k] + b[2 * H + k])
                o = sigmoid(u[3 * H + k] + z[n, 3 * H + k] + b[3 * H + k])
                c = f * cs[t, n, k] + i * g
                gate[k], gate[H + k], gate[2 * H + k], gate[3 * H + k] = i, f, g, o
                cs[t + 1, n, k] = c
                hs[t + 1, n, k] = o * np.tanh(c)


@numba.njit(fastmath=True)
def backward(w, xs, gates, cs, hs, dys):
    """The gradients of `w` and `b`, for cotangents `[T, B, H]` of the outputs."""
    T, B, D = xs.shape
    H = hs.shape[2]
    one = np.float32(1)
    dz = np.empty_like(gates)
    dh, dc = np.zeros((B, H), np.float32), np.zeros((B, H), np.float32)
    turned = np.ascontiguousarray(w[D:].T)
    for t in range(T - 1, -1, -1):
        for n in range(B):
            gate, d = gates[t, n], dz[t, n]
            for k in range(H):
                i, f, g, o = gate[k], gate[H + k], gate[2 * H + k], gate[3 * H + k]
                tanh_c = np.tanh(cs[t + 1, n, k])
                from_h = dys[t, n, k] + dh[n, k]
                from_c = dc[n, k] + from_h * o * (one - tanh_c * tanh_c)
                d[k] = from_c * g * i * (one - i)
                d[H + k] = from_c * cs[t, n, k] * f * (one - f)
                d[2 * H + k] = from_c * i * (one - g * g)
                d[3 * H + k] = from_h * tanh_c * o * (one - o)
                dc[n, k] = from_c * f
        dh = np.dot(dz[t], turned)
    rows = dz.reshape(T * B, 4 * H)
    dw = np.empty_like(w)
    dw[:D] = np.dot(xs.reshape(T * B, D).T, rows)
    dw[D:] = np.dot(hs[:T].reshape(T * B, H).T, rows)
    return dw, rows.sum(axis=0)


class NumbaRunner:
    """The forward pass and the training step of the loop."""

    def __init__(self, problem):
        case = problem.case
        self._lr, self._xs, self._target = problem.lr, problem.xs, problem.target
        self._case = case
        self._w, self._b = (problem.weights[name].copy() for name in ("w", "b"))
        self._gates = np.empty((case.T, case.B, 4 * case.H), np.float32)
        self._cs, self._hs = np.zeros((2, case.T + 1, case.B, case.H), np.float32)

    def forward(self):
        forward(self._w, self._b, self._xs, self._gates, self._cs, self._hs)
        return self._hs[1:]

    def train(self):
        error = self.forward() - self._target
        scale = np.float32(1 / (self._case.T * self._case.B))
        loss = 0.5 * scale * np.vdot(error, error)
        states = self._gates, self._cs, self._hs
        dw, db = backward(self._w, self._xs, *states, scale * error)
        self._w -= np.float32(self._lr) * dw
        self._b -= np.float32(self._lr) * db
        return loss

    def ys(self):
        return self.forward().copy()

    def weights(self):
        return {"w": self._w.copy(), "b": self._b.copy()}


def _refuses(case):
    if case.cell != "lstm" or case.dtype != "float32" or case.last:
        return "the loop that is written by hand is an LSTM's, in float32, all outputs"
    return None


CONTENDERS = [Contender("numba_loop", _refuses, NumbaRunner)]
