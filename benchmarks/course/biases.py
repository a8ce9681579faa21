"""What biases cost: layers with them and without, ours and torch's.

The forum thread "How to speed up for loop in customized RNN?" says that a layer is a
little faster without biases.
"""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import scanrnn
from benchmarks.cases import Case, Problem, problem
from benchmarks.contenders._base import JaxRunner, Model
from benchmarks.contenders.torch import LAYERS, TorchRunner
from benchmarks.course import _turns
from benchmarks.measure import mark
from benchmarks.tables import table
from scanrnn.interop import Weights, to_torch

TITLE = "Layers without biases"
ABOUT = """\
Milliseconds of a training step (forward, backward, update) and of a forward pass, with
95 % intervals, then the time without biases divided by the time with them. The forum
thread says that removing biases helps a little. The layers are `scanrnn.nnx`'s with
`use_bias=False` and torch's with `bias=False`; all have the same weights, and their
outputs are compared first."""
OURS = {"lstm": scanrnn.nnx.LSTM, "gru": scanrnn.nnx.GRU}
CASES = tuple(
    Case(cell, T, B, H, H)
    for T, B, H in ((30, 32, 512), (100, 2, 128))
    for cell in OURS
)
QUICK = (Case("lstm", 3, 2, 4, 4), Case("gru", 3, 2, 4, 4))
MODES = {"training": "train", "forward": "forward"}


class _Torch(TorchRunner):
    """torch's layer with the weights of ours, with biases or without."""

    def __init__(self, given: Problem, layer, use_bias):
        self._given = {
            name: torch.tensor(np.asarray(value))
            for name, value in to_torch(Weights.of(layer)).items()
            if use_bias or not name.startswith("bias")
        }
        self._use_bias = use_bias
        super().__init__(given)

    def build(self, problem, make):
        case = problem.case
        module = LAYERS[case.cell](case.D, case.H, bias=self._use_bias)
        module.load_state_dict(self._given)
        return module


def runners(case: Case, use_bias: bool) -> dict[str, JaxRunner | TorchRunner]:
    """Our layer and torch's, with the same weights; their outputs are compared.

    Raises:
      AssertionError: if the outputs differ.
    """
    given = problem(case)
    options = {"use_bias": use_bias, "time_major": True, "rngs": nnx.Rngs(0)}
    layer = OURS[case.cell](case.D, case.H, **options)
    graph, params = nnx.split(layer)

    def apply(params, xs):
        return nnx.merge(graph, params)(xs).astype(jnp.float32)

    found = {
        "scanrnn": JaxRunner(given, Model(params, apply, dict)),
        "torch": _Torch(given, layer, use_bias),
    }
    ours, theirs = (runner.ys() for runner in found.values())
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    return found


def measure(quick: bool = False) -> list[dict]:
    """A record for each case and mode."""
    rows = []
    for case in QUICK if quick else CASES:
        made = {use_bias: runners(case, use_bias) for use_bias in (True, False)}
        for title, mode in MODES.items():
            calls = {
                f"{who}, {'biases' if use_bias else 'none'}": getattr(runner, mode)
                for use_bias, by_name in made.items()
                for who, runner in by_name.items()
            }
            sizes = f"{case.cell} T={case.T} B={case.B} H={case.H}"
            rows.append({"case": sizes, "mode": title} | _turns.turns(calls, quick))
    return rows


def report(rows: list[dict]) -> list[str]:
    """The part of the page, in Markdown."""
    whos = ("scanrnn", "torch")
    heads = [f"{who}, {bias}" for who in whos for bias in ("biases", "none")]
    lines = [
        [
            f"{row['case']}, {row['mode']}{mark(row)}",
            *(_turns.milliseconds(row, head) for head in heads),
            *(_turns.ratio(row, f"{who}, none", f"{who}, biases") for who in whos),
        ]
        for row in rows
    ]
    columns = ["case", *heads, *(f"{who}: none / biases" for who in whos)]
    return [ABOUT, table(columns, lines)]
