"""Which contenders meet on which cases: one section for each aim."""

import dataclasses
import itertools
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.steps import CUSTOM

PEERS = ("flax_linen", "flax_nnx", "haiku", "equinox", "keras")
PLAIN = ("scanrnn", "lax_scan")
STOCK = ("lstm", "gru", "elman")
GRID = tuple(itertools.product((32, 128), (128, 512, 1024)))  # B, H


class Row(NamedTuple):
    """One row of the report: a case and the contenders that run it."""

    section: str
    case: Case
    contenders: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.section}-{self.case.name}"

    @property
    def size(self) -> tuple[int, ...]:
        """The sizes of the case: rows of the same size are measured together."""
        case = self.case
        return case.T, case.B, case.S, case.D, case.H


def _square(cell, T, B, H, dtype="float32"):
    return Case(cell, T, B, H, H, dtype)


def _quick():
    """The step under lax.scan against the same step planned, on four shapes."""
    yield _square("lstm", 30, 32, 512), PLAIN
    yield _square("gru", 30, 128, 128), PLAIN
    yield _square("ln_mi_res_lstm", 512, 2, 128), PLAIN
    yield _square("elman", 64, 1, 16), PLAIN


def _grid():
    """Stock cells against torch's built-in layers; every peer on some LSTMs."""
    for cell, (B, H) in itertools.product(STOCK, GRID):
        peers = PEERS if cell == "lstm" and (B == 32 or H == 128) else ()
        yield _square(cell, 30, B, H), (*PLAIN, "torch", *peers)


def _custom():
    """Cells that torch has no layer for, against its stock LSTM of the same size.

    The variants that the forum thread "How to speed up for loop in customized RNN?"
    (discuss.pytorch.org/t/1012) asks for: layer normalisation, multiplicative
    integration, a residual connection, and all three. The answer there was 2 to 5 times
    the vendor's LSTM.
    """
    for (B, H), cell in itertools.product(GRID[:-1], CUSTOM):
        yield _square(cell, 30, B, H), (*PLAIN, "torch_lstm")


def _seed():
    """A long sequence in a small batch."""
    sizes = {"T": 4096, "B": 2, "D": 256, "H": 128}
    yield Case("seed_rnn", **sizes), (*PLAIN, "torch", "torch_lstm")
    yield Case("lstm", **sizes), (*PLAIN, "torch", *PEERS)


def _small():
    """Where overheads count, and where batches are small."""
    cells = {cell: "torch" for cell in STOCK} | {cell: "torch_lstm" for cell in CUSTOM}
    for (T, B, H), (cell, torch) in itertools.product(
        ((64, 1, 16), (512, 2, 128)), cells.items()
    ):
        yield _square(cell, T, B, H), (*PLAIN, torch)


def _bf16():
    """Half-precision operands, against our own float32 and torch's autocast."""
    contenders = (*PLAIN, "scanrnn@float32", "torch")
    sizes = ((32, 512), (128, 512), (32, 1024))
    for cell, (B, H) in itertools.product(("lstm", "gru"), sizes):
        peers = PEERS if (cell, B, H) == ("lstm", 32, 512) else ()
        yield _square(cell, 30, B, H, "bfloat16"), (*contenders, *peers)


def _accelerate():
    """Other libraries' own loops, as they are and planned."""
    pairs = [(peer, f"accelerate:{peer}") for peer in PEERS]
    for T, B, H in ((30, 32, 512), (512, 2, 128)):
        yield _square("lstm", T, B, H), ("scanrnn", *itertools.chain(*pairs))


def _conv():
    """A convolutional LSTM over pictures; other libraries' as they are and planned."""
    pairs = [(peer, f"accelerate:{peer}") for peer in ("flax_linen", "keras")]
    case = Case("conv_lstm", T=10, B=8, S=32, D=8, H=16)
    yield case, (*PLAIN, *itertools.chain(*pairs))


_ALL = "split+hoist+sink+merge+defer+layout"
LADDER = {
    "naive": "lax_scan",
    "+split": "scanrnn:split+everything",
    "+hoist, sink": "scanrnn:split+hoist+sink+everything",
    "+merge": "scanrnn:split+hoist+sink+merge+everything",
    "+defer": "scanrnn:split+hoist+sink+merge+defer+everything",
    "+layout": f"scanrnn:{_ALL}+everything",
    "minimal residuals": f"scanrnn:{_ALL}+minimal",
    "recompute": f"scanrnn:{_ALL}+recompute",
    "chunked": f"scanrnn:{_ALL}+chunked",
}


def _ladder():
    """What each pass gives: every rung adds one, then the residual policies."""
    rungs = tuple(LADDER.values())
    yield _square("lstm", 30, 32, 512), rungs
    yield _square("ln_mi_res_lstm", 30, 32, 512), rungs
    yield Case("seed_rnn", 4096, 2, 256, 128), rungs


def _frameworks():
    """glample/rnn-benchmarks in its own form: T=30, D=H, last output, MSE, SGD."""
    for cell, (B, H) in itertools.product(("elman", "lstm"), GRID):
        case = dataclasses.replace(_square(cell, 30, B, H), last=True)
        peers = ("keras", "flax_linen", "haiku", "equinox")
        yield case, (*PLAIN, "torch", *peers)


def _batches():
    """The course page "RNN computational considerations": what a larger batch costs."""
    for B in (1, 8, 32, 128):
        yield Case("lstm", T=100, B=B, D=128, H=256), (*PLAIN, "torch")


def _manual():
    """The course page's fused layer against a loop written by hand.

    `torch` is the fused layer, `torch_loop` its cell called once a step by Python,
    eager, `torch_compile` a compiled cell in such a loop, and `lax_scan` the loop that
    JAX's users write.
    """
    yield (
        Case("lstm", T=200, B=64, D=256, H=512),
        (*PLAIN, "torch", "torch_loop", "torch_compile"),
    )


def _lengths():
    """The course page's claim that time and memory grow with the number of steps."""
    for T in (1024, 4096, 16384, 65536):
        contenders = (*PLAIN, "torch", LADDER["chunked"])
        yield _square("lstm", T, 1, 64), contenders


def _anchors():
    """Sizes at which others publish times.

    torchrl's GRU (T=32, B=64, D=32, H=128): on its authors' CPU, forward and backward
    took 100.7 ms before the weight gradients left the loop, and 10.2 ms since
    (pytorch/rl, pull request 4154). fastrnns of PyTorch (T=100, B=64, D=H=512): the
    vendor's layer, a cell in a loop, layer norm. MXNet's example (T=300, B=20, 800).
    """
    gru = Case("gru", T=32, B=64, D=32, H=128)
    yield gru, (*PLAIN, "torch", "torch_loop")
    loops = ("torch_eager", "torch_script", "torch_compile")
    yield _square("lstm", 100, 64, 512), (*PLAIN, "torch", "torch_loop", *loops)
    yield _square("ln_lstm", 100, 64, 512), (*PLAIN, "torch_lstm", *loops)
    yield _square("lstm", 300, 20, 800), (*PLAIN, "torch")


def _forum():
    """What the forum thread tries: its LSTM for 1,000 steps, and cells in torch itself.

    Python calls the steps of `torch_eager`, `torch_compile` and `torch_script` one by
    one. Where the thread asks to take the loop's control out of Python, `torch_scan`
    stands for it: the loop is one operator of torch, which starts its steps one by one
    itself. In `torch`, `torch_lstm`, `lax_scan` and `scanrnn` the whole loop is
    compiled, and in `numba_loop`, which is a loop that an expert writes, with a
    backward loop derived by hand. In
    the thread, 1,000 forward and backward runs took 4.6 s in PyTorch and 1.4 s in Lua
    Torch, on a Titan X, at sizes that it does not say.
    """
    loops = ("torch_eager", "torch_compile", "torch_script", "torch_scan")
    lstm = Case("lstm", T=1000, B=2, D=256, H=128)
    yield lstm, (*PLAIN, "torch", *loops, "numba_loop")
    for cell in CUSTOM:
        yield _square(cell, 30, 32, 512), (*PLAIN, "torch_lstm", *loops)


SECTIONS = {
    "quick": _quick,
    "grid": _grid,
    "custom": _custom,
    "seed": _seed,
    "small": _small,
    "bf16": _bf16,
    "accelerate": _accelerate,
    "ladder": _ladder,
    "conv": _conv,
    "frameworks": _frameworks,
    "batches": _batches,
    "manual": _manual,
    "lengths": _lengths,
    "anchors": _anchors,
    "forum": _forum,
}


def rows(*sections: str) -> list[Row]:
    """The rows of these sections."""
    return [
        Row(section, case, contenders)
        for section in sections
        for case, contenders in SECTIONS[section]()
    ]
