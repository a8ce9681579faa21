"""Training on several devices: `python -m benchmarks.scaling`.

On this machine the devices are parts of one CPU, which share its cores and memory. The
table shows the cost of the mesh, and the gain from the second core. For a cluster there
is only an estimate: the compute time of one machine, and then an all-reduce of the
gradients, without overlap. On n machines it sends 2 (n - 1) / n times the bytes of the
parameters over the link.
"""

import argparse
import os
import pathlib
import statistics
import time

HERE = pathlib.Path(__file__).parent
DEVICES = (1, 2, 4)
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


def measure(seconds: float) -> dict[tuple[int, int], float]:
    """Tokens per second of the demo's model, by devices and batch."""
    import jax

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
            config = Config(batch=batch)
            mesh = make_mesh(count)
            model = make_model(config, len(corpus.vocabulary))
            state, step = make_training(config, model, mesh=mesh)
            window = next(Streams(corpus.train, batch, config.window))
            window = shard_batch(window, mesh)
            state, metrics = step(state, window)
            runs[count, batch] = [step, state, window, []]
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for run in runs.values():
            start = time.perf_counter()
            run[1], metrics = jax.block_until_ready(run[0](run[1], run[2]))
            run[3].append(time.perf_counter() - start)
    return {
        (count, batch): 64 * batch / statistics.median(times[1:])
        for (count, batch), (*_, times) in runs.items()
    }


def report(measured: dict[tuple[int, int], float], cpu: str, others: float) -> str:
    """The report with both tables, in Markdown."""
    lines = [
        "# Training on several devices",
        "",
        " ".join(__doc__.split("\n\n")[1].split()),
    ]
    lines += [
        "",
        f"Machine: {cpu}. Characters per second of the demo's model; "
        f"other processes used {others:.1f} cores meanwhile.",
    ]
    lines += [""]
    lines += ["| devices | batch 32 | batch 128 |", "|---:|---:|---:|"]
    for count in DEVICES:
        row = [
            f"{measured[count, b]:,.0f} ({measured[count, b] / measured[1, b]:.2f}x)"
            for b in (32, 128)
        ]
        lines.append(f"| {count} | {' | '.join(row)} |")
    size = {"features": 1500, "layers": 2, "symbols": 10_000}
    weights, words = parameters(**size), 700
    lines += ["", "## Where it stops, on paper", ""]
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
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures with four devices forced on the host, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={max(DEVICES)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    from benchmarks import machine

    machine.prepare()
    others = machine.Others()
    measured = measure(options.seconds)
    text = report(measured, machine.cpu_name(), others.cores())
    (HERE / "results" / f"scaling-{machine.kind()}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
