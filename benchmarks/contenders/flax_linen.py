"""Flax Linen: `RNN` over Flax's own cells, time-major."""

import functools

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders._base import Contender, JaxRunner, Model, split_joint

CELLS = {
    "lstm": nn.OptimizedLSTMCell,
    "gru": nn.GRUCell,
    "elman": nn.SimpleCell,
    "conv_lstm": functools.partial(nn.ConvLSTMCell, kernel_size=(3, 3)),
}


def supports(case):
    if case.cell not in CELLS:
        return f"flax.linen has no {case.cell}"
    if case.cell == "elman" and case.dtype != "float32":
        return "flax.linen SimpleCell(dtype=bfloat16) fails in RNN"
    return None


def model(problem):
    case = problem.case
    dtype = None if case.dtype == "float32" else jnp.dtype(case.dtype)
    rnn = nn.RNN(CELLS[case.cell](case.H, dtype=dtype), time_major=True)
    to_linen, export = CONVERTERS[case.cell]
    return Model(
        params={"params": {"cell": to_linen(problem.weights, case)}},
        apply=lambda params, xs: rnn.apply(params, xs),
        export=lambda params: export(params["params"]["cell"]),
    )


def _lstm(w, case):
    wx, wh = split_joint(w, case.D)
    params = {}
    for n, gate in enumerate("ifgo"):
        columns = slice(n * case.H, (n + 1) * case.H)
        params[f"i{gate}"] = {"kernel": wx[:, columns]}
        params[f"h{gate}"] = {"kernel": wh[:, columns], "bias": w["b"][columns]}
    return params


def _export_lstm(p):
    def kernel(side):
        return np.concatenate([p[side + gate]["kernel"] for gate in "ifgo"], axis=-1)

    b = np.concatenate([p["h" + gate]["bias"] for gate in "ifgo"])
    return {"w": np.concatenate([kernel("i"), kernel("h")]), "b": b}


def _gru(w, case):
    params = {}
    for n, gate in enumerate("rzn"):
        columns = slice(n * case.H, (n + 1) * case.H)
        params[f"i{gate}"] = {"kernel": w["wx"][:, columns], "bias": w["b"][columns]}
        params[f"h{gate}"] = {"kernel": w["wh"][:, columns]}
    params["hn"]["bias"] = w["bn"]
    return params


def _export_gru(p):
    def joined(side, leaf):
        return np.concatenate([p[side + gate][leaf] for gate in "rzn"], axis=-1)

    return {
        "wx": joined("i", "kernel"),
        "wh": joined("h", "kernel"),
        "b": joined("i", "bias"),
        "bn": p["hn"]["bias"],
    }


def _elman(w, case):
    del case
    return {"i": {"kernel": w["wx"], "bias": w["b"]}, "h": {"kernel": w["wh"]}}


def _export_elman(p):
    return {"wx": p["i"]["kernel"], "wh": p["h"]["kernel"], "b": p["i"]["bias"]}


def _conv_lstm(w, case):
    """Flax's order is i, g, f, o. Its step adds 1 to f, and it has two biases."""
    wx, wh, b = (_swapped(w[name]) for name in ("wx", "wh", "b"))
    zeros = np.zeros_like(b)
    one = np.repeat(np.array([0, 0, 1, 0], np.float32), case.H)
    return {"ih": {"kernel": wx, "bias": b - one}, "hh": {"kernel": wh, "bias": zeros}}


def _export_conv_lstm(p):
    """The first bias is ours: each of the two biases gets the whole gradient."""
    wx, wh, b = p["ih"]["kernel"], p["hh"]["kernel"], p["ih"]["bias"]
    one = np.repeat(np.array([0, 0, 1, 0], np.float32), len(b) // 4)
    return {"wx": _swapped(wx), "wh": _swapped(wh), "b": _swapped(b + one)}


def _swapped(a):
    """Swaps the two gates in the middle."""
    i, f, g, o = np.split(np.asarray(a), 4, axis=-1)
    return np.concatenate([i, g, f, o], axis=-1)


CONVERTERS = {
    "lstm": (_lstm, _export_lstm),
    "gru": (_gru, _export_gru),
    "elman": (_elman, _export_elman),
    "conv_lstm": (_conv_lstm, _export_conv_lstm),
}

CONTENDERS = [
    Contender("flax_linen", supports, lambda p: JaxRunner(p, model(p)), model=model)
]
