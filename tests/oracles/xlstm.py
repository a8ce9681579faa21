"""The two cells of Beck et al. 2024, xLSTM."""

import numpy as np

from tests.oracles.gated import join, projections, sigmoid


def larger(a, b):
    """By the real part: a complex step has no order."""
    return np.where(np.real(a) >= np.real(b), a, b)


def magnitude(a):
    return np.where(np.real(a) >= 0, a, -a)


def logarithm(forget, f):
    return np.log(sigmoid(f)) if forget == "sigmoid" else f


def slstm(forget="sigmoid", least=None, norm=None, heads=1):
    """Equations 8 to 14 with the stabilised gates of 15 to 17; `least` bounds n."""

    def step(params, carry, x):
        h, c, n, m = carry
        wx, uh = projections(params, x, h, 4, norm, heads)
        wx, uh = np.split(wx, 4), np.split(uh, 4)
        i, f, z, o = (join(params, wx[k], uh[k], k, norm) for k in range(4))
        log_f = logarithm(forget, f)
        new_m = larger(log_f + m, i)
        kept, come = np.exp(log_f + m - new_m), np.exp(i - new_m)
        c = kept * c + come * np.tanh(z)
        n = kept * n + come
        h = sigmoid(o) * c / (n if least is None else larger(n, least))
        return (h, c, n, new_m), h

    return step


def slstm_plain(params, carry, x):
    """Equations 8 to 14 with a sigmoid forget gate, not stabilised."""
    h, c, n = carry
    i, f, z, o = np.split(
        params["kernel"].T @ x + params["recurrent_kernel"].T @ h + params["bias"], 4
    )
    c = sigmoid(f) * c + np.exp(i) * np.tanh(z)
    n = sigmoid(f) * n + np.exp(i)
    h = sigmoid(o) * c / n
    return (h, c, n), h


def _head(params, x, part, scalar):
    """Queries, keys, values of one head, and the arguments of its two gates."""
    q, k, v = (
        np.split(params["kernel"], 4, axis=1)[g][:, part].T @ x for g in range(3)
    )
    b_q, b_k, b_v = (np.split(params["bias"], 4)[g][part] for g in range(3))
    i, f = (
        np.split(params["gate_kernel"], 2, axis=1)[g][:, scalar] @ x
        + np.split(params["gate_bias"], 2)[g][scalar]
        for g in range(2)
    )
    return q + b_q, k / np.sqrt(len(k)) + b_k, v + b_v, i, f


def _heads(params, x, carry, read):
    """Go over the heads; o is over all."""
    memories, outputs = [], []
    heads = len(carry[1])
    d = carry[1].shape[1]
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        own = tuple(field[head] for field in carry)
        memory, h = read(own, *_head(params, x, part, head))
        memories.append(memory)
        outputs.append(h)
    o = np.split(params["kernel"], 4, axis=1)[3].T @ x + np.split(params["bias"], 4)[3]
    carry = tuple(np.stack(field) for field in zip(*memories, strict=True))
    return carry, sigmoid(o) * np.concatenate(outputs)


def mlstm(forget="sigmoid", clamped=False):
    """Equations 19 to 27, stabilised as in 15 to 17: then 1 becomes exp(-m)."""

    def read(memory, q, k, v, i, f):
        C, n, m = memory
        log_f = logarithm(forget, f)
        new_m = larger(log_f + m, i)
        kept, come = np.exp(log_f + m - new_m), np.exp(i - new_m)
        C = kept * C + come * np.outer(v, k)
        n = kept * n + come * k
        least = 1.0 if clamped else np.exp(-new_m)
        return (C, n, new_m), C @ q / larger(magnitude(n @ q), least)

    def step(params, carry, x):
        return _heads(params, x, carry, read)

    return step


def mlstm_plain(params, carry, x):
    """Equations 19 to 27 with a sigmoid forget gate, not stabilised."""

    def read(memory, q, k, v, i, f):
        C, n = memory
        C = sigmoid(f) * C + np.exp(i) * np.outer(v, k)
        n = sigmoid(f) * n + np.exp(i) * k
        return (C, n), C @ q / larger(magnitude(n @ q), 1.0)

    return _heads(params, x, carry, read)
