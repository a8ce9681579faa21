"""How much memory a forward pass takes at inference, ours and others'.

Each contender runs in a process of its own, so that nobody's freed memory is reused.
"""

import concurrent.futures
import ctypes
import gc
import multiprocessing
import pathlib
import re
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.tables import table

TITLE = "Memory at inference"
ABOUT = """\
`LSTM({D}, {H}, num_layers=2)`, a batch of {B}: megabytes of the process at the peak of
a forward pass, beyond what it held before, as Linux counts them: the median of {rounds}
passes. The outputs are part of it, and are given in the second column. `training` is
torch's forward pass outside of `torch.inference_mode`, which keeps what the backward
pass needs. A stream takes chunks of 16 steps and keeps outputs of one chunk only."""
SIZES, STEPS = {"B": 32, "D": 256, "H": 512}, (100, 400, 800)
QUICK, FEW = {"B": 2, "D": 4, "H": 5}, (3,)
NAMES = ("scanrnn", "lax.scan", "stream", "torch", "torch, training")
ROUNDS, CHUNK = 3, 16
STATUS = pathlib.Path("/proc/self/status")


def peak(call: Callable[[], Any]) -> int | None:
    """The bytes that a call takes beyond those before; None if Linux does not say."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        before = _status("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the old peak
    except (OSError, AttributeError):
        return None
    call()
    return max(0, _status("VmHWM") - before)


def _status(name):
    return 1024 * int(re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text())[1])


def _layer(sizes, implementation=None):
    from flax import nnx

    import scanrnn

    options = {"num_layers": 2, "implementation": implementation, "rngs": nnx.Rngs(0)}
    return scanrnn.nnx.LSTM(sizes["D"], sizes["H"], **options)


def _jitted(sizes, xs, implementation=None):
    import jax
    from flax import nnx

    graph, params = nnx.split(_layer(sizes, implementation))
    run = jax.jit(lambda params, xs: nnx.merge(graph, params)(xs))
    compiled, xs = run.lower(params, xs).compile(), jax.device_put(xs)
    return lambda: compiled(params, xs).block_until_ready()


def _stream(sizes, xs):
    from scanrnn.serving import Streaming

    stream = Streaming(_layer(sizes), streams=sizes["B"], buckets=(CHUNK,))
    stream(xs[:, :CHUNK])

    def call():
        for start in range(0, xs.shape[1], CHUNK):
            stream(xs[:, start : start + CHUNK])

    return call


def _torch(sizes, xs, inference=True):
    import torch

    layer = torch.nn.LSTM(sizes["D"], sizes["H"], num_layers=2, batch_first=True)
    data = torch.from_numpy(xs)
    layer(data[:, :1])  # loads the kernels

    def call():
        with torch.inference_mode(inference):
            return layer(data)

    return call


MAKERS = {
    "scanrnn": _jitted,
    "lax.scan": lambda sizes, xs: _jitted(sizes, xs, "scan"),
    "stream": _stream,
    "torch": _torch,
    "torch, training": lambda sizes, xs: _torch(sizes, xs, False),
}


def peaks(name: str, sizes: dict, steps: tuple[int, ...], rounds: int) -> list:
    """The median peak of a contender for each number of steps; run it in a process."""
    found = []
    for T in steps:
        shape = sizes["B"], T, sizes["D"]
        xs = np.random.default_rng(0).standard_normal(shape, np.float32)
        call = MAKERS[name](sizes, xs)
        taken = [peak(call) for _ in range(rounds)]
        found.append(None if None in taken else statistics.median(taken))
    return found


def measure(quick: bool = False) -> dict:
    """The peaks of every contender, in bytes, for each number of steps."""
    sizes, steps, rounds = (QUICK, FEW, 1) if quick else (SIZES, STEPS, ROUNDS)
    context, found = multiprocessing.get_context("spawn"), {}
    for name in NAMES[::3] if quick else NAMES:
        with concurrent.futures.ProcessPoolExecutor(1, context) as alone:
            found[name] = alone.submit(peaks, name, sizes, steps, rounds).result()
    return {"sizes": sizes, "steps": steps, "rounds": rounds, "bytes": found}


def report(found: dict) -> list[str]:
    """The part of the page, in Markdown."""
    lines = []
    for place, T in enumerate(found["steps"]):
        outputs = 4 * T * found["sizes"]["B"] * found["sizes"]["H"]
        taken = [by_steps[place] for by_steps in found["bytes"].values()]
        lines.append([f"T={T}", *map(_megabytes, [outputs, *taken])])
    heads = ("steps", "outputs", *found["bytes"])
    about = ABOUT.format(rounds=found["rounds"], **found["sizes"])
    return [about, table(heads, lines)]


def _megabytes(number):
    return "-" if number is None else f"{number / 1e6:.1f}"
