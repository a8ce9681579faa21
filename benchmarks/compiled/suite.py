"""Which programs are compiled for both machines.

These are the training steps of all cells: in bfloat16 for every size, in float32 for
half of the sizes, and of some cells in bfloat16 throughout. Forward passes are in
bfloat16 for half of the sizes. Flax takes part where it has the cell. Then there are
other people's programs with large states, and one with two layers in a step, in
training and in a forward pass.
"""

from benchmarks import programs, steps
from benchmarks.cases import MODES, Case
from benchmarks.compiled.measure import ProgramCase, Row
from benchmarks.compiled.targets import TARGETS

# T, B, H; D is H.
SIZES = ((30, 32, 512), (256, 64, 1024), (1024, 16, 768), (512, 2, 128))
# A sentence, and a long sequence in a small batch.
FLOAT32_SIZES = (SIZES[0], SIZES[2])
# A sentence, and a large layer.
FORWARD_SIZES = (SIZES[0], SIZES[1])
# Convolutional cells are left out: these are no sizes of pictures.
CELLS = tuple(name for name in steps.CELLS if "conv" not in name)
# Cells that are also compiled in bfloat16 throughout: without gates, with gates, with
# norms, and with multiplicative integration.
THROUGHOUT = ("elman", "lstm", "gru", "ln_lstm", "mi_lstm")
# The cells that `flax.nnx` has, and the dtype in which its `RNN` runs them.
FLAX = {"lstm": "bfloat16", "gru": "bfloat16", "elman": "float32"}

OURS, PLAIN, PEER = CONTENDERS = ("scanrnn", "lax_scan", "flax_nnx")


def rows() -> list[Row]:
    """All rows of the suite; the rows of a case follow each other."""
    return [
        Row(machine, case, mode, contender)
        for machine in TARGETS
        for case, mode in _programs()
        for contender in _contenders(case, mode)
    ]


def _programs():
    for sizes, dtype, mode in (
        (SIZES, "bfloat16", "train"),
        (FLOAT32_SIZES, "float32", "train"),
        (FORWARD_SIZES, "bfloat16", "forward"),
    ):
        for T, B, H in sizes:
            for cell in CELLS:
                yield Case(cell, T, B, H, H, dtype), mode
    for T, B, H in SIZES:
        for cell in THROUGHOUT:
            yield Case(cell, T, B, H, H, "bfloat16", throughout=True), "train"
    for name in (*programs.NOT_WORSE, *programs.STACKED):
        for mode in MODES:
            yield ProgramCase(name), mode


def _contenders(case, mode):
    cell = getattr(case, "cell", None)
    has_peer = mode == "train" and FLAX.get(cell) == case.dtype
    has_peer = has_peer and not case.throughout
    return CONTENDERS if has_peer else CONTENDERS[:2]
