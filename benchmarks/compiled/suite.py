"""Which programs are compiled: about ten minutes on two cores for both machines.

Every cell's training step on every size in bfloat16, on half of the sizes in float32;
a cell of each kind that is bfloat16 throughout; forward passes on half of the sizes in
bfloat16; Flax where it has the cell. And other people's programs, training and forward.
"""

from benchmarks import programs, steps
from benchmarks.cases import MODES, Case
from benchmarks.compiled.measure import ProgramCase, Row
from benchmarks.compiled.targets import TARGETS

# T, B, H; as many inputs as features.
SIZES = ((30, 32, 512), (256, 64, 1024), (1024, 16, 768), (512, 2, 128))
# A sentence, and a long sequence in a small batch.
FLOAT32_SIZES = (SIZES[0], SIZES[2])
# A sentence, and a large layer.
FORWARD_SIZES = (SIZES[0], SIZES[1])
# Cells of vectors: these sizes are not those of pictures.
CELLS = tuple(name for name in steps.CELLS if "conv" not in name)
# Those that are half precision throughout, too: without gates, with them, with norms.
THROUGHOUT = ("elman", "lstm", "gru", "ln_lstm", "mi_lstm")
# What `flax.nnx` has, and the dtype in which its `RNN` takes it.
FLAX = {"lstm": "bfloat16", "gru": "bfloat16", "elman": "float32"}

OURS, PLAIN, PEER = CONTENDERS = ("scanrnn", "lax_scan", "flax_nnx")


def rows() -> list[Row]:
    """Every row of the suite, those of a case one after the other."""
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
    for name in programs.NOT_WORSE:
        for mode in MODES:
            yield ProgramCase(name), mode


def _contenders(case, mode):
    cell = getattr(case, "cell", None)
    has_peer = mode == "train" and FLAX.get(cell) == case.dtype
    has_peer = has_peer and not case.throughout
    return CONTENDERS if has_peer else CONTENDERS[:2]
