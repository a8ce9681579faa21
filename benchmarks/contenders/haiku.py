"""Haiku: `dynamic_unroll` of its LSTM, time-major, without an rng argument."""

import haiku as hk
import numpy as np

from benchmarks.contenders._base import Contender, JaxRunner, Model

# The order of Haiku's gates is i, g, f, o, and its step adds 1 to f.
ORDER = (0, 2, 1, 3)


def supports(case):
    reasons = {
        "gru": "haiku's GRU resets before its GEMM: another function",
        "elman": "haiku's VanillaRNN is a ReLU cell",
    }
    if case.cell != "lstm":
        return reasons.get(case.cell, f"haiku has no {case.cell}")
    if case.dtype != "float32":
        return "haiku has no compute dtype of its own"
    return None


def model(problem):
    case, w = problem.case, problem.weights

    def unroll(xs):
        core = hk.LSTM(case.H)
        return hk.dynamic_unroll(core, xs, core.initial_state(case.B))[0]

    transformed = hk.without_apply_rng(hk.transform(unroll))
    one = np.repeat(np.array([0, 0, 1, 0], np.float32), case.H)
    linear = {"w": _reorder(w["w"]), "b": _reorder(w["b"]) - one}
    return Model(
        params={"lstm/linear": linear},
        apply=transformed.apply,
        export=lambda params: {
            "w": _reorder(params["lstm/linear"]["w"]),
            "b": _reorder(params["lstm/linear"]["b"] + one),
        },
    )


def _reorder(a):
    gates = np.split(np.asarray(a), 4, axis=-1)
    return np.concatenate([gates[n] for n in ORDER], axis=-1)


CONTENDERS = [
    Contender("haiku", supports, lambda p: JaxRunner(p, model(p)), model=model)
]
