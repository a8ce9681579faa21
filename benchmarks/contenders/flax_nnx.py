"""Flax NNX: `RNN` over Flax's own cells, time-major; its state is split off once."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.contenders._base import Contender, JaxRunner, Model, split_joint

CELLS = {
    "lstm": nnx.OptimizedLSTMCell,
    "gru": nnx.GRUCell,
    "elman": nnx.SimpleCell,
}


def supports(case):
    if case.cell == "gru":
        return "flax.nnx GRUCell has no recurrent bias"
    if case.cell not in CELLS:
        return f"flax.nnx has no {case.cell}"
    if case.cell == "elman" and case.dtype != "float32":
        return "flax.nnx SimpleCell(dtype=bfloat16) fails in RNN"
    return None


def model(problem):
    case, w = problem.case, problem.weights
    rnn = layer(case)
    wx, wh = (w["wx"], w["wh"]) if "wx" in w else split_joint(w, case.D)
    rnn.cell.dense_i.kernel[...], rnn.cell.dense_h.kernel[...] = wx, wh
    biased = rnn.cell.dense_h if case.cell == "lstm" else rnn.cell.dense_i
    biased.bias[...] = w["b"]
    params, apply = split(rnn, case)
    return Model(
        params=params,
        apply=apply,
        export=lambda params: _export(case.cell, nnx.to_pure_dict(params)["cell"]),
    )


def layer(case):
    """The layer of a case, with the weights that Flax draws."""
    dtype = None if case.dtype == "float32" else jnp.dtype(case.dtype)
    cell = CELLS[case.cell](case.D, case.H, dtype=dtype, rngs=nnx.Rngs(0))
    return nnx.RNN(cell, time_major=True, rngs=nnx.Rngs(0))


def split(rnn, case):
    """The params of a layer, and `apply(params, xs) -> ys`."""
    graph, params, rest = nnx.split(rnn, nnx.Param, ...)

    def apply(params, xs):
        # A given carry keeps NNX from drawing one from its random stream.
        zeros = jnp.zeros((xs.shape[1], case.H), xs.dtype)
        carry = (zeros, zeros) if case.cell == "lstm" else zeros
        return nnx.merge(graph, params, rest)(xs, initial_carry=carry)

    return params, apply


def _export(cell, p):
    wx, wh = p["dense_i"]["kernel"], p["dense_h"]["kernel"]
    if cell == "elman":
        return {"wx": wx, "wh": wh, "b": p["dense_i"]["bias"]}
    return {"w": np.concatenate([wx, wh]), "b": p["dense_h"]["bias"]}


CONTENDERS = [
    Contender("flax_nnx", supports, lambda p: JaxRunner(p, model(p)), model=model)
]
