"""Training on several devices: `python -m benchmarks.scaling`.

On this machine the devices are parts of one CPU, which share its cores and memory. The
table shows the cost of the mesh, and the gain from the second core. For a cluster there
is only an estimate: the compute time of one machine, and then an all-reduce of the
gradients, without overlap. On n machines it sends 2 (n - 1) / n times the bytes of the
parameters over the link.

`--quick` takes a few steps of a tiny model, and writes `.benchmarks/scaling.*`, which
are not committed.
"""

import argparse
import os
import time
from typing import Any

DEVICES = (1, 2, 4)
QUICK = {"features": 4, "window": 3}
# Bytes per second and machine in one direction, as links are sold under these names.
LINKS = {
    "1 Gbit Ethernet": 0.125e9,
    "25 Gbit Ethernet": 3.1e9,
    "400 Gbit InfiniBand": 50e9,
    "NVLink 4": 450e9,
}
# Operations per second that a step of these sizes reaches: these are not peaks.
CHIPS = {"2 cores": 1e11, "a P40 by cuDNN": 9.8e12, "an H100 at 40 % of bf16": 4e14}


def flops_per_word(features: int, layers: int, symbols: int) -> float:
    """Operations of all matrix products of a training step, for each word."""
    return 6.0 * (layers * 8 * features * features + features * symbols)


def parameters(features: int, layers: int, symbols: int) -> int:
    """The number of weights of the language model without layer norm."""
    layer = 8 * features * features + 4 * features
    return layers * layer + 2 * features * symbols + symbols


def efficiency(compute: float, parameters: int, link: float, machines: int) -> float:
    """The speed of n machines, divided by n times the speed of one machine.

    Args:
        compute: seconds of a step on one machine; each machine has its own batch.
        parameters: the number of parameters; their gradients are float32.
        link: bytes per second between two machines.
        machines: n.
    """
    ring = 2 * (machines - 1) / machines * 4 * parameters / link
    return compute / (compute + ring)


def measure(
    seconds: float, least: int = 30, changes: dict[str, Any] | None = None
) -> list[dict]:
    """Tokens per second of the demo's model: a row for each batch and count of devices.

    All take turns for `seconds` seconds, and for `least` steps at least. `changes` are
    to the demo's config.
    """
    import jax

    from benchmarks import intervals, machine
    from scanrnn.training import (
        Config,
        Streams,
        load_corpus,
        make_mesh,
        make_model,
        make_training,
        shard_batch,
    )

    corpus, runs = load_corpus(), {}
    for batch in (32, 128):
        for count in DEVICES:
            config = Config(batch=batch, **changes or {})
            mesh = make_mesh(count)
            model = make_model(config, len(corpus.vocabulary))
            state, step = make_training(config, model, mesh=mesh)
            window = next(Streams(corpus.train, batch, config.window))
            window = shard_batch(window, mesh)
            state, metrics = step(state, window)
            runs[count, batch] = [step, state, window, []]
    begin, others = time.perf_counter(), machine.Others()
    while time.perf_counter() - begin < seconds or len(runs[1, 32][3]) < least:
        for run in runs.values():
            start = time.perf_counter()
            run[1], metrics = jax.block_until_ready(run[0](run[1], run[2]))
            run[3].append(time.perf_counter() - start)
    busy, rows = others.cores(), []
    for (count, batch), (*_, times) in runs.items():
        taken, characters = intervals.median(times), batch * config.window
        speeds = (taken.value, taken.high, taken.low)
        rows.append(
            {
                "devices": count,
                "batch": batch,
                "steps": len(times),
                "per_second": [characters / second for second in speeds],
                "speed_up": intervals.ratio(runs[1, batch][3], times),
                "disturbance": busy,
                "settled": taken.width <= 0.03,
            }
        )
    return rows


def report(results: dict) -> str:
    """The report with both tables, in Markdown."""
    from benchmarks import origin

    lines = [
        "# Training on several devices",
        "",
        " ".join(__doc__.split("\n\n")[1].split()),
        "",
        origin.line(results),
        "",
        *_measured(results["rows"]),
        "",
        *_on_paper(),
    ]
    return "\n".join([*lines, ""])


def _measured(rows):
    from benchmarks.measure import mark
    from benchmarks.tables import table

    cells = [
        [
            str(row["devices"]),
            f"{row['batch']}{mark(row)}",
            "{:,.0f} [{:,.0f}, {:,.0f}]".format(*row["per_second"]),
            "{:.2f} [{:.2f}, {:.2f}]".format(*row["speed_up"]),
            str(row["steps"]),
        ]
        for row in rows
    ]
    heads = ("devices", "batch", "characters per second", "/ one device", "steps")
    about = "The demo's model, parts of one CPU; 95 % intervals of medians."
    return ["## Measured here", "", about, "", table(heads, cells)]


def _on_paper():
    size = {"features": 1500, "layers": 2, "symbols": 10_000}
    weights, words = parameters(**size), 700
    lines = ["## On paper: several machines", "", "Nothing of this is measured.", ""]
    lines += [
        f"PTB's large model: {weights / 1e6:.1f} million parameters, so "
        f"{4 * weights / 1e6:.0f} MB of gradients in a step, and "
        f"{flops_per_word(**size) / 1e6:.0f} MFLOP per word; batches of 20 windows "
        "of 35 words on every machine. Share of n times the speed of one, for n = 2, "
        "8, 64; a batch ten times as large divides what is lost by about ten.",
        "",
        "| machine | step alone |" + "".join(f" {link} |" for link in LINKS),
        "|---|---:|" + "---:|" * len(LINKS),
    ]
    for chip, speed in CHIPS.items():
        compute = words * flops_per_word(**size) / speed
        shares = [
            ", ".join(
                f"{efficiency(compute, weights, link, n):.2f}" for n in (2, 8, 64)
            )
            for link in LINKS.values()
        ]
        lines.append(f"| {chip} | {1e3 * compute:.3g} ms | {' | '.join(shares)} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    """Measures with four devices forced on the host, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    options = parser.parse_args(argv)
    flag = f"--xla_force_host_platform_device_count={max(DEVICES)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    from benchmarks import machine, origin

    machine.prepare()
    rows = measure(0, 2, QUICK) if options.quick else measure(options.seconds)
    path = origin.place("scaling", options.quick)
    origin.keep(path, origin.origin() | {"rows": rows}, report)


if __name__ == "__main__":
    main()
