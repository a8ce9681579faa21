"""torch's built-in layers on the CPU (oneDNN and MKL): the speed to beat.

`torch` computes the same function with the same weights, through the built-in
layer of the cell. `torch_lstm` is the stock `nn.LSTM` at the sizes of the case,
whatever its cell: the yardstick for cells that torch has no layer for.
"""

import contextlib
import dataclasses

import numpy as np
import torch

from benchmarks.contenders._base import Contender, split_joint
from benchmarks.machine import cores

# As many as XLA takes: the cores this process may use.
torch.set_num_threads(cores())

LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "elman": torch.nn.RNN}


class Head(torch.nn.Module):
    """The seed's RNN on the built-in layer: a readout of x and of the old h."""

    def __init__(self, case):
        super().__init__()
        self.rnn = torch.nn.RNN(case.D, case.H)
        self.linear = torch.nn.Linear(case.D + case.H, case.H)

    def forward(self, xs):
        hs, last = self.rnn(xs)
        old = torch.cat([torch.zeros_like(hs[:1]), hs[:-1]])
        return self.linear(torch.cat([xs, old], dim=-1)), last


class TorchRunner:
    """Forward and training step of a torch module."""

    def __init__(self, problem):
        self._case = problem.case
        self._module = _build(problem)
        self._xs = torch.from_numpy(problem.xs.copy())
        self._target = torch.from_numpy(problem.target.copy())
        # foreach: all parameters updated in one call.
        self._sgd = torch.optim.SGD(
            self._module.parameters(), lr=problem.lr, foreach=True
        )

    def _autocast(self):
        if self._case.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=getattr(torch, self._case.dtype))

    def forward(self):
        with torch.inference_mode(), self._autocast():
            return self._module(self._xs)[0]

    def train(self):
        self._sgd.zero_grad(set_to_none=True)
        with self._autocast():
            ys = self._module(self._xs)[0]
        error = ys.float() - self._target
        loss = 0.5 * torch.sum(error * error) / (self._case.T * self._case.B)
        loss.backward()
        self._sgd.step()
        return loss.detach()

    def ys(self):
        return self.forward().float().numpy()

    def weights(self):
        return _export(self._case.cell, self._module)


def _build(problem):
    case, w = problem.case, problem.weights
    gates = {"lstm": 4, "gru": 3}.get(case.cell, 1)
    module = (
        Head(case) if case.cell == "seed_rnn" else LAYERS[case.cell](case.D, case.H)
    )
    rnn = module.rnn if isinstance(module, Head) else module
    wx, wh = (w["wx"], w["wh"]) if "wx" in w else split_joint(w, case.D)
    second_bias = np.zeros(gates * case.H, np.float32)
    if case.cell == "gru":
        second_bias[2 * case.H :] = w["bn"]
    values = {
        rnn.weight_ih_l0: wx.T,
        rnn.weight_hh_l0: wh.T,
        rnn.bias_ih_l0: w["b"],
        rnn.bias_hh_l0: second_bias,
    }
    if isinstance(module, Head):
        values |= {module.linear.weight: w["wo"].T, module.linear.bias: w["bo"]}
    with torch.no_grad():
        for parameter, value in values.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return module


def _export(cell, module):
    """torch adds two biases, each with the whole gradient: ours is the first.

    Right after one step, which is when it is asked; later the second has moved.
    """
    rnn = module.rnn if isinstance(module, Head) else module
    params = {name: p.detach().numpy().copy() for name, p in rnn.named_parameters()}
    wx, wh = params["weight_ih_l0"].T, params["weight_hh_l0"].T
    b, second = params["bias_ih_l0"], params["bias_hh_l0"]
    if cell == "gru":
        return {"wx": wx, "wh": wh, "b": b, "bn": second[2 * wh.shape[0] :]}
    if cell == "elman":
        return {"wx": wx, "wh": wh, "b": b}
    weights = {"w": np.concatenate([wx, wh]), "b": b}
    if isinstance(module, Head):
        weights["wo"] = module.linear.weight.detach().numpy().T.copy()
        weights["bo"] = module.linear.bias.detach().numpy().copy()
    return weights


def _refuses(case):
    """Why the stock LSTM cannot stand for a case."""
    if case.S:
        return "torch's LSTM takes no pictures"
    return "it is `torch`" if case.cell == "lstm" else None


CONTENDERS = [
    Contender(
        name="torch",
        supports=lambda case: (
            None
            if case.cell in (*LAYERS, "seed_rnn")
            else f"torch has no built-in {case.cell}"
        ),
        setup=TorchRunner,
    ),
    Contender(
        name="torch_lstm",
        supports=_refuses,
        setup=TorchRunner,
        computes=lambda case: dataclasses.replace(case, cell="lstm"),
    ),
]
