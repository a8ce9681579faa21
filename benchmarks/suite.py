"""Which contenders meet on which cases: one section for each aim."""

import itertools
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.steps import CUSTOM

PEERS = ("flax_linen", "flax_nnx", "haiku", "equinox", "keras")
PLAIN = ("scanrnn", "lax_scan")
STOCK = ("lstm", "gru", "elman")
GRID = tuple(itertools.product((32, 128), (128, 512, 1024)))  # B, H


class Row(NamedTuple):
    """One benchmark: who runs what."""

    section: str
    case: Case
    contenders: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.section}-{self.case.name}"


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
    """Cells that torch has no layer for, against its stock LSTM of the same size."""
    for (B, H), cell in itertools.product(GRID, CUSTOM):
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
    for cell, B, H in itertools.product(("lstm", "gru"), (32, 128), (512, 1024)):
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
    yield _square("lstm", 30, 128, 128), rungs
    yield _square("ln_mi_res_lstm", 30, 32, 512), rungs
    yield Case("seed_rnn", 4096, 2, 256, 128), rungs


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
}


def rows(*sections: str) -> list[Row]:
    """The rows of these sections."""
    return [
        Row(section, case, contenders)
        for section in sections
        for case, contenders in SECTIONS[section]()
    ]
