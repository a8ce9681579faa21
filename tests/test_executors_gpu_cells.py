"""All cells of the table as kernels for a GPU: by Pallas's interpreter, on a CPU."""

import functools
import re

import pytest

import scanrnn
from scanrnn.executors import pallas_gpu
from tests.cell_table import CELLS, draw
from tests.test_executors_lanes import assert_equal_to_lax_scan

NAME = pallas_gpu.NAME
# What a kernel for a GPU cannot do, and the rows that need it whatever their sizes are.
REFUSED = {
    "conv_general_dilated": {name for name in CELLS if name.startswith("conv_")},
    "split an array": {"qrnn-2-fo"},
    "mixes the states": {"rwkv7", "rwkv7-head", "rwkv7-norm"},
    "mixes the heads": {"lstm-everything", "slstm-everything"},
    # The rows of the table have a projection to 2 and a state of 3.
    "at least 16 features": {"lstm-projection"},
    "powers of two": {"mamba2", "mamba2-head"},
}
# With 16 features these are refused: heads would have 8, and three gates or a norm of
# three can only be divided into slices.
WITH_32 = {
    *("elman-heads", "lstm-heads", "gru-heads", "gru-cho2014-heads", "ugrnn-heads"),
    *("slstm-heads", "lstm-coupled", "rhn-2-uncoupled"),
    *("gru-norm", "gru-norm-mi", "gru-fastrnns", "gru-tfa", "gru-rms"),
}
RUN = [name for name in CELLS if name not in set().union(*REFUSED.values())]


def args_of(name):
    features = 32 if name in WITH_32 else 16
    params, xs, carry = draw(CELLS[name], features=features)
    # The params are normal numbers: products of so many of them would saturate gates.
    params = {k: v / features**0.5 if "kernel" in k else v for k, v in params.items()}
    return params, carry, xs


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_cell_as_a_kernel_of_a_gpu_equals_lax_scan(name):
    make = functools.partial(functools.partial, CELLS[name].cell.step)
    assert_equal_to_lax_scan(make, args_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("reason", REFUSED)
def test_cell_that_a_gpu_cannot_run_is_refused_with_the_reason(reason):
    for name in sorted(REFUSED[reason]):
        refused(name, args_of(name), reason)


@pytest.mark.slow
def test_cells_that_need_32_features_are_refused_with_16():
    for name in sorted(WITH_32):
        params, xs, carry = draw(CELLS[name], features=16)
        reason = "16 features|powers of two|split an array"
        refused(name, (params, carry, xs), reason)


def refused(name, args, reason):
    """Check that a cell is refused, and that the words name what is in the way."""
    params, carry, xs = args
    step = functools.partial(CELLS[name].cell.step, params)
    with pytest.raises(ValueError, match="cannot run this step: loop") as caught:
        scanrnn.plan(step, carry, xs, implementation=NAME)
    assert re.search(reason, str(caught.value)), name
