"""Haiku: `dynamic_unroll` of a core, time-major, without an rng argument.

Its own Elman core, `VanillaRNN`, is a ReLU cell: `Elman` is the same with tanh.
"""

import haiku as hk
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders._base import Contender, JaxRunner, Model

# The order of Haiku's gates is i, g, f, o, and its step adds 1 to f.
ORDER = (0, 2, 1, 3)


class Elman(hk.VanillaRNN):
    """Haiku's `VanillaRNN`, with tanh in place of its ReLU."""

    def __call__(self, inputs, prev_state):
        of_inputs = hk.Linear(self.hidden_size, name="input_to_hidden")
        of_state = hk.Linear(self.hidden_size, with_bias=False, name="hidden_to_hidden")
        h = jnp.tanh(of_inputs(inputs) + of_state(prev_state))
        return h, h


def supports(case):
    if case.cell == "gru":
        return "haiku's GRU resets before its GEMM: another function"
    if case.cell not in CELLS:
        return f"haiku has no {case.cell}"
    if case.dtype != "float32":
        return "haiku has no compute dtype of its own"
    return None


def model(problem):
    case = problem.case
    make, of_cell = CELLS[case.cell]

    def unroll(xs):
        core = make(case.H)
        return hk.dynamic_unroll(core, xs, core.initial_state(case.B))[0]

    transformed = hk.without_apply_rng(hk.transform(unroll))
    return of_cell(problem.weights, transformed.apply, case)


def _elman(w, apply, case):
    ins, states = "elman/input_to_hidden", "elman/hidden_to_hidden"
    return Model(
        params={ins: {"w": w["wx"], "b": w["b"]}, states: {"w": w["wh"]}},
        apply=apply,
        export=lambda params: {
            "wx": params[ins]["w"],
            "wh": params[states]["w"],
            "b": params[ins]["b"],
        },
    )


def _lstm(w, apply, case):
    one = np.repeat(np.array([0, 0, 1, 0], np.float32), case.H)
    linear = {"w": _reorder(w["w"]), "b": _reorder(w["b"]) - one}
    return Model(
        params={"lstm/linear": linear},
        apply=apply,
        export=lambda params: {
            "w": _reorder(params["lstm/linear"]["w"]),
            "b": _reorder(params["lstm/linear"]["b"] + one),
        },
    )


def _reorder(a):
    gates = np.split(np.asarray(a), 4, axis=-1)
    return np.concatenate([gates[n] for n in ORDER], axis=-1)


# The core of each cell, and what makes its `Model`.
CELLS = {"lstm": (hk.LSTM, _lstm), "elman": (Elman, _elman)}


CONTENDERS = [
    Contender("haiku", supports, lambda p: JaxRunner(p, model(p)), model=model)
]
