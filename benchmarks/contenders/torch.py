"""torch's built-in layers: the speed to beat. They run where JAX runs.

On a CPU they are oneDNN's and MKL's, on a GPU cuDNN's.

`torch` computes the same function with the same weights by torch's layer for the cell.
`torch_loop` calls torch's cell once for each step from Python (eager) and stacks the
outputs, as people do who change a cell. `torch_lstm` is the stock `nn.LSTM` at the
sizes of the case, whatever its cell is: the yardstick for cells for which torch has no
layer. `torch_graph` and `torch_lstm_graph` are these on a GPU, recorded in CUDA graphs:
then nothing waits for Python.
"""

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import torch

from benchmarks.contenders._base import Contender, split_joint
from benchmarks.machine import cores

# As many threads as XLA has: the cores that this process may use.
torch.set_num_threads(cores())
GPU = jax.default_backend() == "gpu" and torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "elman": torch.nn.RNN}
CELLS = {
    "lstm": torch.nn.LSTMCell,
    "gru": torch.nn.GRUCell,
    "elman": torch.nn.RNNCell,
}


class Head(torch.nn.Module):
    """`seed_rnn` by the built-in layer: its readout reads x and the old h."""

    def __init__(self, case):
        super().__init__()
        self.rnn = torch.nn.RNN(case.D, case.H)
        self.linear = torch.nn.Linear(case.D + case.H, case.H)

    def forward(self, xs):
        hs, last = self.rnn(xs)
        old = torch.cat([torch.zeros_like(hs[:1]), hs[:-1]])
        return self.linear(torch.cat([xs, old], dim=-1)), last


class Loop(torch.nn.Module):
    """torch's cell, called once for each step."""

    def __init__(self, case):
        super().__init__()
        self.rnn = CELLS[case.cell](case.D, case.H)

    def forward(self, xs):
        carry, hs = None, []
        for x in xs:
            carry = self.rnn(x, carry)
            hs.append(carry[0] if isinstance(carry, tuple) else carry)
        return torch.stack(hs), carry


class TorchRunner:
    """The forward pass and the training step of a torch module."""

    def __init__(self, problem, make=None):
        self._case = problem.case
        self._module = self.build(problem, make or _layer).to(DEVICE)
        self._xs = torch.from_numpy(problem.xs.copy()).to(DEVICE)
        self._target = torch.from_numpy(problem.target.copy()).to(DEVICE)
        # foreach: all parameters updated in one call.
        self._sgd = torch.optim.SGD(
            self._module.parameters(), lr=problem.lr, foreach=True
        )

    def build(self, problem, make):
        """The module, with the weights of the problem."""
        return _build(problem, make)

    def _autocast(self):
        if self._case.dtype == "float32":
            return contextlib.nullcontext()
        dtype = getattr(torch, self._case.dtype)
        # A graph cannot keep what the cache holds from one call to the next.
        return torch.autocast(DEVICE, dtype=dtype, cache_enabled=not GPU)

    def forward(self):
        return _ended(self._forward())

    def train(self):
        return _ended(self._train())

    def _forward(self):
        with torch.inference_mode(), self._autocast():
            return self._case.outputs(self._module(self._xs)[0])

    def _train(self):
        self._sgd.zero_grad(set_to_none=True)
        with self._autocast():
            ys = self._case.outputs(self._module(self._xs)[0])
        error = ys.float() - self._target
        loss = 0.5 * torch.sum(error * error) / (len(error) * self._case.B)
        loss.backward()
        self._sgd.step()
        return loss.detach()

    def ys(self):
        return self.forward().float().cpu().numpy()

    def weights(self):
        return _export(self._case.cell, self._module)


class GraphRunner(TorchRunner):
    """The same, each recorded once in a CUDA graph, which is then replayed."""

    def __init__(self, problem):
        super().__init__(problem)
        # What warms up trains, too: the weights are restored before recording.
        before = [p.detach().clone() for p in self._module.parameters()]
        self._graphs, self._results = {}, {}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._forward(), self._train()
        torch.cuda.current_stream().wait_stream(stream)
        for name, run in (("forward", self._forward), ("train", self._train)):
            self._graphs[name] = torch.cuda.CUDAGraph()
            graph = self._graphs[name]
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._results[name] = run()
        with torch.no_grad():
            for p, old in zip(self._module.parameters(), before, strict=True):
                p.copy_(old)

    def forward(self):
        return self._replay("forward")

    def train(self):
        return self._replay("train")

    def _replay(self, name):
        self._graphs[name].replay()
        return _ended(self._results[name])


def _ended(result):
    """The result, once it is computed."""
    if GPU:
        torch.cuda.synchronize()
    return result


def _layer(case):
    return Head(case) if case.cell == "seed_rnn" else LAYERS[case.cell](case.D, case.H)


def _build(problem, make):
    case, w = problem.case, problem.weights
    gates = {"lstm": 4, "gru": 3}.get(case.cell, 1)
    module = make(case)
    rnn = _parameters(module)
    wx, wh = (w["wx"], w["wh"]) if "wx" in w else split_joint(w, case.D)
    second_bias = np.zeros(gates * case.H, np.float32)
    if case.cell == "gru":
        second_bias[2 * case.H :] = w["bn"]
    values = {
        rnn["weight_ih"]: wx.T,
        rnn["weight_hh"]: wh.T,
        rnn["bias_ih"]: w["b"],
        rnn["bias_hh"]: second_bias,
    }
    if isinstance(module, Head):
        values |= {module.linear.weight: w["wo"].T, module.linear.bias: w["bo"]}
    with torch.no_grad():
        for parameter, value in values.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return module


def _parameters(module):
    """The parameters of the layer or cell, by their names in a cell."""
    rnn = getattr(module, "rnn", module)
    return {name.removesuffix("_l0"): p for name, p in rnn.named_parameters()}


def _export(cell, module):
    """The weights by the names of the naive step.

    torch adds two biases, and each gets the whole gradient: the first one is ours. This
    holds after one training step, when the gate asks; later the second has moved, too.
    """
    params = {
        name: p.detach().cpu().numpy().copy() for name, p in _parameters(module).items()
    }
    wx, wh = params["weight_ih"].T, params["weight_hh"].T
    b, second = params["bias_ih"], params["bias_hh"]
    if cell == "gru":
        return {"wx": wx, "wh": wh, "b": b, "bn": second[2 * wh.shape[0] :]}
    if cell == "elman":
        return {"wx": wx, "wh": wh, "b": b}
    weights = {"w": np.concatenate([wx, wh]), "b": b}
    if isinstance(module, Head):
        weights["wo"] = module.linear.weight.detach().cpu().numpy().T.copy()
        weights["bo"] = module.linear.bias.detach().cpu().numpy().copy()
    return weights


def lacks_half(dtype: str) -> str | None:
    """Why torch's layers do not compute in `dtype` here; None if they do.

    Without instructions for bfloat16 torch has no LSTM in it, and its GRU takes 27
    times as long as in float32 (T=30, B=32, D=H=1024, two cores with AVX2).
    """
    if dtype == "float32" or GPU or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return "torch has no fast layer in bfloat16 for this processor"


def _has_no_layer(case):
    """Why torch's layers cannot run a case; None if one can."""
    if case.cell not in (*LAYERS, "seed_rnn"):
        return f"torch has no built-in {case.cell}"
    return lacks_half(case.dtype)


def _refuses(case):
    """Why the stock LSTM is no yardstick for a case; None if it is."""
    if case.S:
        return "torch's LSTM takes no pictures"
    return "it is `torch`" if case.cell == "lstm" else lacks_half(case.dtype)


def _no_graph(reason):
    """The reason of a function, or that there is no GPU."""
    return lambda case: reason(case) if GPU else "CUDA graphs need a GPU"


CONTENDERS = [
    Contender(name="torch", supports=_has_no_layer, setup=TorchRunner),
    Contender(
        name="torch_loop",
        supports=lambda case: (
            None if case.cell in CELLS else f"torch has no cell of {case.cell}"
        ),
        setup=functools.partial(TorchRunner, make=Loop),
    ),
    Contender(
        name="torch_lstm",
        supports=_refuses,
        setup=TorchRunner,
        computes=lambda case: dataclasses.replace(case, cell="lstm"),
        runs_as="torch",
    ),
    Contender(name="torch_graph", supports=_no_graph(_has_no_layer), setup=GraphRunner),
    Contender(
        name="torch_lstm_graph",
        supports=_no_graph(_refuses),
        setup=GraphRunner,
        computes=lambda case: dataclasses.replace(case, cell="lstm"),
        runs_as="torch_graph",
    ),
]
