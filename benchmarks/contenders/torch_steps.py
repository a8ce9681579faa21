"""Steps written by hand in torch, as people do who invent a cell.

`torch_eager` calls a step in a Python loop, `torch_compile` calls a compiled step in
such a loop, `torch_script` calls a step that TorchScript has traced, and `torch_scan`
gives the step to `torch._higher_order_ops.scan`. The steps are those of
`benchmarks.steps`, line by line.
"""

import functools
import shutil
import warnings

import numpy as np
import torch
from torch._higher_order_ops import scan

from benchmarks import steps
from benchmarks.contenders._base import Contender
from benchmarks.contenders.torch import TorchRunner


def layer_norm(u):
    return torch.nn.functional.layer_norm(u, u.shape[-1:])


def pointwise(z, c):
    i, f, g, o = torch.chunk(z, 4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o), c


def integrate(params, zx, zh):
    """Multiplicative integration of Wu et al. (2016)."""
    return params["alpha"] * zx * zh + params["beta1"] * zh + params["beta2"] * zx


def elman(params, carry, x):
    (h,) = carry
    h = torch.tanh(x @ params["wx"] + h @ params["wh"] + params["b"])
    return (h,), h


def seed_rnn(params, carry, x):
    z = torch.cat([x, carry[0]], dim=-1)
    h = torch.tanh(z @ params["w"] + params["b"])
    return (h,), z @ params["wo"] + params["bo"]


def lstm(params, carry, x):
    h, c = carry
    z = torch.addmm(params["b"], torch.cat([x, h], dim=-1), params["w"])
    o, c = pointwise(z, c)
    h = o * torch.tanh(c)
    return (h, c), h


def res_lstm(params, carry, x):
    carry, h = lstm(params, carry, x)
    return carry, x + h


def mi_lstm(params, carry, x):
    h, c = carry
    z = integrate(params, x @ params["wx"], h @ params["wh"])
    o, c = pointwise(z + params["b"], c)
    h = o * torch.tanh(c)
    return (h, c), h


def _normed(params, carry, x, join):
    h, c = carry
    zx = layer_norm(x @ params["wx"]) * params["gx"]
    zh = layer_norm(h @ params["wh"]) * params["gh"]
    o, c = pointwise(join(zx, zh) + params["b"], c)
    h = o * torch.tanh(layer_norm(c) * params["gc"] + params["bc"])
    return (h, c), h


def ln_lstm(params, carry, x):
    return _normed(params, carry, x, torch.add)


def ln_mi_res_lstm(params, carry, x):
    carry, h = _normed(params, carry, x, functools.partial(integrate, params))
    return carry, x + h


STEPS = {
    step.__name__: step
    for step in (elman, lstm, seed_rnn, ln_lstm, mi_lstm, res_lstm, ln_mi_res_lstm)
}


class Loop(torch.nn.Module):
    """A step, called once for each time step from Python."""

    def __init__(self, problem):
        super().__init__()
        case = problem.case
        self._hidden, self._carries = case.H, steps.CELLS[case.cell].carries
        self._step = STEPS[case.cell]
        self._params = torch.nn.ParameterDict(
            {name: torch.from_numpy(w.copy()) for name, w in problem.weights.items()}
        )

    def start(self, xs):
        """Zeros for each leaf of the carry, and the weights by name."""
        size = xs.shape[1], self._hidden
        carry = tuple(xs.new_zeros(size) for _ in range(self._carries))
        return carry, dict(self._params.items())

    def forward(self, xs):
        carry, params = self.start(xs)
        ys = []
        for x in xs:
            carry, y = self._step(params, carry, x)
            ys.append(y)
        return torch.stack(ys), carry

    def export(self):
        return {name: p.detach().numpy().copy() for name, p in self._params.items()}


class CompiledLoop(Loop):
    """The same loop over a step that torch has compiled."""

    def __init__(self, problem):
        super().__init__(problem)
        self._step = torch.compile(self._step, dynamic=False)


class ScriptedLoop(Loop):
    """The same loop over a step in TorchScript.

    The step is traced, because TorchScript reads no `*sizes`. torch warns that
    TorchScript is deprecated; PyTorch's fastrnns are still written for it.
    """

    def __init__(self, problem):
        super().__init__(problem)
        case, step = problem.case, self._step
        x = torch.zeros(case.B, case.D)
        carry, params = self.start(x[None])
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            self._step = torch.jit.trace(step, (params, carry, x), check_trace=False)


class Scan(Loop):
    """The loop as one operator of torch.

    It is traced and differentiated, and then runs operator by operator: on a CPU
    inductor, torch's compiler, refuses both the loop and its gradient (torch 2.13).
    """

    def __init__(self, problem):
        super().__init__(problem)
        self._whole = torch.compile(self._loop, dynamic=False, backend="eager")

    def _loop(self, carry, params, xs):
        def step(carry, x):
            carry, y = self._step(params, carry, x)
            # An output of the operator may not be another output's memory.
            return carry, y.clone()

        return scan(step, carry, xs, dim=0)

    def forward(self, xs):
        carry, ys = self._whole(*self.start(xs), xs)
        return ys, carry


class StepsRunner(TorchRunner):
    """The forward pass and the training step of a loop that is written by hand."""

    def build(self, problem, make):
        return make(problem)

    def weights(self) -> dict[str, np.ndarray]:
        return self._module.export()


def _refuses(case):
    """Why a case cannot run; None if it can."""
    if case.cell not in STEPS:
        return f"no step of {case.cell} is written in torch"
    return None if case.dtype == "float32" else "the steps are written for float32"


def _refuses_to_compile(case):
    if any(map(shutil.which, ("g++", "clang++"))):
        return _refuses(case)
    return "torch.compile needs a C++ compiler"


CONTENDERS = [
    Contender(name, supports, functools.partial(StepsRunner, make=make))
    for name, supports, make in (
        ("torch_eager", _refuses, Loop),
        ("torch_compile", _refuses_to_compile, CompiledLoop),
        ("torch_script", _refuses, ScriptedLoop),
        ("torch_scan", _refuses, Scan),
    )
]
