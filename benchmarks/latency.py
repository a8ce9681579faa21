"""`python -m benchmarks.latency`: the time of one call when inputs come one by one.

There is one stream (B=1). A call takes one step or a chunk of 16 steps, and the carry
is kept between calls. Contenders are `scanrnn.serving.Streaming`, called with an array
or with a dict of streams, a jitted `lax.scan`, onnxruntime with the model that we
export, and torch's `nn.LSTM`. Each takes and gives NumPy arrays. Contenders take turns,
and their answers are compared first.

JAX on a CPU runs a program in another thread, or in the thread of the caller if the
process asks for that before it makes its first array. Both are measured. `--quick` runs
one tiny size, and writes `.benchmarks/latency.*`, which are not committed.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
import sys
import time
from typing import Any

import jax
import numpy as np
import onnxruntime
import torch
from flax import nnx

import scanrnn
from benchmarks import intervals, machine, origin, tables
from benchmarks.machine import Others, cores
from benchmarks.measure import KNOWN, QUIET, mark
from benchmarks.race import LOOKS, SETTLED
from scanrnn.interop import Weights, to_torch
from scanrnn.serving import Streaming, to_onnx

SIZES, CHUNKS, CELLS = (32, 64, 128, 256, 512, 1024), (1, 16), (None, "ba2016")
CALLS, BLOCK = 1000, 20
QUICK_SIZES = (8,)
AIM, AIM_SIZE = 1.3, 64
LEAST = 30  # blocks of calls, which are the rounds of the other benchmarks
SECONDS = 10.0  # the longest that a row goes on because its medians are not settled
# Seconds of pause in which the threads of the contender before stop spinning.
REST = 0.005
NAMES = ("scanrnn", "by stream", "lax.scan", "onnxruntime", "torch")


def ours(rnn: Any) -> Any:
    """`Streaming` of the layer, called with an array."""
    return Streaming(rnn, buckets=CHUNKS)


def by_stream(rnn: Any) -> Any:
    """`Streaming` of the layer, called with a dict of streams."""
    stream = ours(rnn)
    return lambda x: stream({0: x[0]})[0][None]


def jitted(rnn: Any) -> Any:
    """The layer's step under a jitted `lax.scan`."""
    (((cell, params),),) = rnn.stack

    @jax.jit
    def run(params, carry, x):
        step = functools.partial(cell.step, params)
        carry, ys = jax.lax.scan(step, carry, x.swapaxes(0, 1))
        return carry, ys.swapaxes(0, 1)

    carry = cell.initial_carry(params, np.zeros([1, rnn.in_features], np.float32))

    def call(x):
        nonlocal carry
        carry, y = run(params, carry, x)
        return np.asarray(y)

    return call


def runtime(rnn: Any) -> Any:
    """onnxruntime with the exported model and as many threads as the others."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    content = to_onnx(rnn, carry=True).SerializeToString()
    session = onnxruntime.InferenceSession(content, options)
    names = [one.name for one in session.get_inputs()]
    carry = [np.zeros([1, rnn.hidden_features], np.float32) for _ in names[1:]]

    def call(x):
        nonlocal carry
        y, *carry = session.run(None, dict(zip(names, [x, *carry], strict=True)))
        return y

    return call


def built_in(rnn: Any) -> Any:
    """torch's `nn.LSTM` with our weights."""
    layer = torch.nn.LSTM(rnn.in_features, rnn.hidden_features, batch_first=True)
    weights = to_torch(Weights.of(rnn)).items()
    layer.load_state_dict({k: torch.tensor(np.asarray(v)) for k, v in weights})
    carry = None

    def call(x):
        nonlocal carry
        with torch.inference_mode():
            y, carry = layer(torch.from_numpy(x), carry)
        return y.numpy()

    return call


def measure(
    size: int, steps: int, norm: str | None, quick: bool = False
) -> dict[str, Any]:
    """The record of one size: microseconds, median and 99th percentile.

    The ratio to `lax.scan` is that of the medians of blocks of calls. Contenders take
    turns block by block, so what slows a block of one slows that of the other.

    Args:
      size: input and hidden features.
      steps: time steps of one call.
      norm: the layer norm of the cell, such as "ba2016", or None.
      quick: take as few blocks of calls as can be.
    """
    rnn = scanrnn.nnx.LSTM(size, size, norm=norm, rngs=nnx.Rngs(0))
    makers = (ours, by_stream, jitted, runtime)
    calls = {name: make(rnn) for name, make in zip(NAMES, makers, strict=False)}
    if norm is None:
        calls["torch"] = built_in(rnn)
    x = np.random.default_rng(0).normal(size=(1, steps, size)).astype(np.float32)
    for _ in range(3):  # each call goes on from the carry of the call before
        answers = [call(x) for call in calls.values()]
        for answer in answers[1:]:
            np.testing.assert_allclose(answer, answers[0], rtol=1e-3, atol=1e-4)
    others = Others()
    least = 1 if quick else max(LEAST, CALLS // steps // BLOCK + 5)
    times = _blocks(calls, x, least, 0.0 if quick else SECONDS)
    quantiles = {k: np.quantile(t, [0.5, 0.99]).tolist() for k, t in times.items()}
    medians = _medians(times)
    return {
        "H": size,
        "steps": steps,
        "norm": norm,
        "us": quantiles,
        "over_jitted": {
            name: intervals.ratio(medians[name], medians["lax.scan"])
            for name in ("scanrnn", "by stream", "onnxruntime")
        },
        "blocks": len(times[NAMES[0]]),
        "settled": _settled(times),
        "disturbance": others.cores(),
    }


def _blocks(calls, x, least, seconds):
    """Microseconds of all calls by contender: a list of blocks, taken in turns."""
    times: dict[str, list[list[float]]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while least > 0 or (time.perf_counter() < end and not _settled(times)):
        for _ in range(LOOKS):
            for name, call in calls.items():
                times[name].append(_block(call, x))
        least -= LOOKS
    return times


def _block(call, x):
    time.sleep(REST)
    call(x)
    taken = []
    for _ in range(BLOCK):
        begin = time.perf_counter()
        call(x)
        taken.append(1e6 * (time.perf_counter() - begin))
    return taken


def _medians(times):
    return {name: np.median(blocks, axis=1) for name, blocks in times.items()}


def _settled(times):
    """Whether the median of every contender is known as well as in the other tables."""
    medians = map(intervals.median, _medians(times).values())
    return all(median.width <= SETTLED for median in medians)


def session(inline: bool, quick: bool = False) -> list[dict]:
    """All rows for one way to run programs; call it in a process of its own.

    Args:
      inline: whether JAX runs programs in the thread of the caller.
      quick: run tiny sizes.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", not inline)
    machine.prepare()
    torch.set_num_threads(cores())
    rows = []
    for norm in CELLS:
        for steps in CHUNKS:
            sizes = QUICK_SIZES if quick else SIZES
            rows += [measure(size, steps, norm, quick) for size in sizes]
    return [row | {"inline": inline} for row in rows]


def report(results: dict) -> str:
    """The report, in Markdown."""
    rows = results["rows"]

    def cell(row, name):
        found = row["us"].get(name)
        return "" if found is None else f"{found[0]:,.0f} / {found[1]:,.0f}"

    def line(row):
        thread = "the caller's" if row["inline"] else "another"
        case = thread, row["norm"] or "none", str(row["steps"]), str(row["H"])
        ratios = (_shown(ratio) for ratio in row["over_jitted"].values())
        return case[0] + mark(row), *case[1:], *(cell(row, n) for n in NAMES), *ratios

    heads = ("thread", "norm", "steps", "H", *NAMES)
    heads += tuple(f"{name} / lax.scan" for name in rows[0]["over_jitted"])
    return "\n".join(
        [
            "# Latency",
            "",
            origin.line(results) + f" onnxruntime {results['onnxruntime']}.",
            "",
            "Microseconds per call, median / 99th percentile: an LSTM of one stream, "
            "float32, as many inputs as features. Ratios have 95 % intervals.",
            "",
            "JAX runs programs in another thread, or in the caller's after "
            '`jax.config.update("jax_cpu_enable_async_dispatch", False)`. By stream is '
            "`Streaming` with a dict; `lax.scan` is the same step, jitted.",
            "",
            _aim(rows),
            "",
            tables.table(heads, [line(row) for row in rows]),
            "",
        ]
    )


def _shown(ratio):
    return "{:.2f} [{:.2f}, {:.2f}]".format(*ratio)


def _aim(rows):
    """The worst ratio of one step of a small layer to the jitted step, and the aim."""
    small = [row for row in rows if row["steps"] == 1 and row["H"] <= AIM_SIZE]
    quiet = [row for row in small if row["disturbance"] <= QUIET]
    ratios = (intervals.Estimate(*row["over_jitted"]["scanrnn"]) for row in quiet)
    known = [ratio for ratio in ratios if ratio.width <= KNOWN]
    words = f"The aim: one step of `Streaming` takes at most {AIM} of the jitted step's"
    words += f" time, up to H={AIM_SIZE}. A row counts if nothing disturbed it and the"
    words += f" interval of its ratio is within {KNOWN:.0%}."
    if not known:
        return f"{words} No row counts."
    return f"{words} The worst row that counts: {_shown(max(known))}."


def main(argv: list[str] | None = None) -> int:
    """Measures, and writes the results and their report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny size")
    quick = parser.parse_args(argv).quick
    rows = []
    for inline in (False, True):
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, context) as alone:
            rows += alone.submit(session, inline, quick).result()
    results = origin.origin() | {"onnxruntime": onnxruntime.__version__, "rows": rows}
    origin.keep(origin.place("latency", quick), results, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
