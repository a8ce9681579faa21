"""Equinox: its cells take one example, so `lax.scan` runs the vmapped cell.

It has no Elman cell: `ElmanCell` is one, written as its cells are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders._base import Contender, JaxRunner, Model, split_joint


class ElmanCell(eqx.Module):
    """`tanh(W_x x + W_h h + b)`, with the names of Equinox's cells."""

    weight_ih: jax.Array
    weight_hh: jax.Array
    bias: jax.Array

    def __init__(self, input_size, hidden_size, *, key):
        # The weights come from the problem.
        self.weight_ih = jnp.zeros((hidden_size, input_size))
        self.weight_hh = jnp.zeros((hidden_size, hidden_size))
        self.bias = jnp.zeros(hidden_size)

    def __call__(self, input, hidden):
        return jnp.tanh(self.weight_ih @ input + self.weight_hh @ hidden + self.bias)


CELLS = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell, "elman": ElmanCell}


def supports(case):
    if case.cell not in CELLS:
        return f"equinox has no {case.cell}"
    if case.dtype != "float32":
        return "equinox has no compute dtype of its own"
    return None


def model(problem):
    case, w = problem.case, problem.weights
    cell = CELLS[case.cell](case.D, case.H, key=jax.random.key(0))
    wx, wh = (w["wx"], w["wh"]) if "wx" in w else split_joint(w, case.D)
    values = {"weight_ih": wx.T, "weight_hh": wh.T, "bias": w["b"]}
    if case.cell == "gru":
        values["bias_n"] = w["bn"]
    for name, value in values.items():
        cell = eqx.tree_at(lambda c, name=name: getattr(c, name), cell, value)
    params, static = eqx.partition(cell, eqx.is_array)

    def apply(params, xs):
        step = jax.vmap(eqx.combine(params, static))
        zeros = jnp.zeros((xs.shape[1], case.H), xs.dtype)
        lstm = case.cell == "lstm"

        def body(carry, x):
            carry = step(x, carry)
            return carry, carry[0] if lstm else carry

        return jax.lax.scan(body, (zeros, zeros) if lstm else zeros, xs)[1]

    return Model(params, apply, lambda params: _export(case.cell, params))


def _export(cell, p):
    wx, wh = p.weight_ih.T, p.weight_hh.T
    if cell == "gru":
        return {"wx": wx, "wh": wh, "b": p.bias, "bn": p.bias_n}
    if cell == "elman":
        return {"wx": wx, "wh": wh, "b": p.bias}
    return {"w": np.concatenate([wx, wh]), "b": p.bias}


CONTENDERS = [
    Contender("equinox", supports, lambda p: JaxRunner(p, model(p)), model=model)
]
