"""Words per second of PTB's recipe: `python -m benchmarks.words --sizes small,large`.

A step is forward, backward, clip and update, dropout included, of the recipe's language
model on the docstrings of Python's library; compilation is outside. Contenders take
turns in one process. They are those of the comparison with cuDNN that the recipe was
timed for: a plain cell in a loop, one with its gates merged, and a built-in layer.
torch's layer stands for cuDNN's.

`--quick` takes a few steps of tiny models, and writes `.benchmarks/words.*`, which are
not committed.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import intervals, machine, origin, sentences
from benchmarks.measure import mark
from benchmarks.race import MIN_ROUNDS, SETTLED
from benchmarks.tables import table
from scanrnn.training import (
    RECIPES,
    Config,
    Corpus,
    LanguageModel,
    Streams,
    Vocabulary,
    Window,
    load_corpus,
    make_model,
    make_training,
)

CONTENDERS = {
    "plain": ("plain cell loop (Flax's cell, eight products a step)", "none"),
    "merged": ("`lax.scan`, merged gates", "none"),
    "planned": ("scanrnn", "none"),
    "torch": ("torch's `nn.LSTM`", "none"),
    "merged-norm": ("`lax.scan`, merged gates", "ba2016"),
    "planned-norm": ("scanrnn", "ba2016"),
}
# The model of the README's other figure: 35,000 words, which are drawn, because no
# text here has as many.
WIDE, SYMBOLS = "1,500 units, 35,000 words", 35_000
FEW = ("merged", "planned", "torch")
QUICK = {"features": 4, "window": 3, "batch": 2}
# The least number of steps of every contender: a step of the large sizes takes seconds.
LEAST = {"small": MIN_ROUNDS, "medium": MIN_ROUNDS, "large": 5, "wide": 5}
# The published speeds of these roles: YJ Choe's README on CudnnLSTM.
PUBLISHED = f"""\
Published for the large size, on another machine (an NVIDIA P40, TensorFlow 1.8, cuDNN
7): BasicLSTMCell 15,000 words/s (1.0), LSTMBlockCell 17,000 (1.1), CudnnLSTM 32,000
(2.1), which has no layer norm. For {WIDE} (2 layers, batch 20, 35 steps) it says about
100 ms a batch in PyTorch and 120 ms in TensorFlow."""
ABOUT_TABLE = f"""\
Medians over steps with 95 % intervals; the speed-up is that over the first contender of
the size. A step of the two large sizes takes seconds, so they have a few steps. The
{SYMBOLS:,} words are drawn by Zipf's law; they mean nothing. A median that is not known
to {100 * SETTLED:.0f} % is marked as not settled."""


class PlainLayers(nnx.Module):
    """Layers of Flax's cells, in which each gate has its own products."""

    def __init__(self, features, num_layers, dropout):
        self.num_layers, self.residual, self.dropout = num_layers, False, dropout
        rngs = nnx.Rngs(0)
        self.layers = nnx.List(
            nnx.RNN(cell, time_major=True, rngs=rngs)
            for cell in [
                nnx.LSTMCell(features, features, rngs=rngs) for _ in range(num_layers)
            ]
        )

    def __call__(self, xs, *, initial_carry, deterministic, rngs, **ignored):
        batch, last = xs.shape[1], []
        for number, layer in enumerate(self.layers):
            if number and not deterministic:
                kept = jax.random.bernoulli(rngs.dropout(), 1 - self.dropout, xs.shape)
                xs = jnp.where(kept, xs / (1 - self.dropout), 0)
            carry = jnp.zeros((batch, xs.shape[-1]))
            carry = (carry, carry) if initial_carry is None else initial_carry[number]
            carry, xs = layer(xs, initial_carry=carry, return_carry=True)
            last.append(carry)
        return tuple(last), xs


class JaxRunner:
    """A contender in JAX: our guarded training step."""

    def __init__(self, config, symbols, name):
        implementation = "scan" if name.startswith("merged") else None
        model = make_model(config, symbols, implementation)
        if name == "plain":
            model = _plain(model, config)
        self._state, self._step = make_training(config, model)

    def step(self, inputs, targets):
        batch = Window(inputs, targets)
        self._state, metrics = self._step(self._state, batch)
        return float(metrics.loss)


def _plain(model: LanguageModel, config):
    rnn = PlainLayers(config.features, config.layers, 1 - config.keep)
    # The step differentiates everything in a model, so it must hold no random streams.
    for layer in rnn.layers:
        layer.rngs = None
        layer.cell.rngs = None
    model.rnn = rnn
    return model


class TorchRunner:
    """The same model, clipping and update, made of torch's own parts."""

    def __init__(self, config, symbols):
        import torch

        torch.set_num_threads(machine.cores())
        torch.manual_seed(0)
        self._torch, self._config, self._carry = torch, config, None
        drop, size = 1 - config.keep, config.features
        self._embed = torch.nn.Embedding(symbols, size)
        self._rnn = torch.nn.LSTM(size, size, config.layers, dropout=drop)
        self._readout = torch.nn.Linear(size, symbols)
        self._drop = torch.nn.Dropout(drop)
        modules = (self._embed, self._rnn, self._readout)
        self._weights = [p for module in modules for p in module.parameters()]
        for weight in self._weights:
            torch.nn.init.uniform_(weight, -config.uniform, config.uniform)
        self._sgd = torch.optim.SGD(
            self._weights, lr=config.learning_rate, foreach=True
        )

    def step(self, inputs, targets):
        torch = self._torch
        inputs, targets = (torch.from_numpy(a).long() for a in (inputs, targets))
        self._sgd.zero_grad(set_to_none=True)
        xs = self._drop(self._embed(inputs))
        ys, carry = self._rnn(xs, self._carry)
        self._carry = tuple(c.detach() for c in carry)
        logits = self._readout(self._drop(ys))
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum"
        )
        loss = loss / inputs.shape[1]
        loss.backward()
        clip = self._config.clip
        torch.nn.utils.clip_grad_norm_(self._weights, clip, foreach=True)
        self._sgd.step()
        return float(loss.detach())


def race(config: Config, corpus, names, seconds: float, least: int = 5) -> dict:
    """Words per second of every contender: by the median step, and over all steps.

    Contenders take turns for `seconds` seconds, and for `least` steps at least.
    """
    runners, losses = {}, {}
    streams = Streams(corpus.train, config.batch, config.window)
    window = next(streams)
    for name in names:
        own = Config.from_mapping(vars(config) | {"norm": CONTENDERS[name][1]})
        if name == "torch":
            runners[name] = TorchRunner(own, len(corpus.vocabulary))
        else:
            runners[name] = JaxRunner(own, len(corpus.vocabulary), name)
        losses[name] = runners[name].step(*window[:2]) / config.window
    taken = {name: [] for name in names}
    begin, others = time.perf_counter(), machine.Others()
    while time.perf_counter() - begin < seconds or len(taken[names[0]]) < least:
        window = next(streams)
        for name, runner in runners.items():
            start = time.perf_counter()
            runner.step(*window[:2])
            taken[name].append(time.perf_counter() - start)
    words = config.batch * config.window
    first = taken[names[0]]
    rows = {n: _row(times, first, words, losses[n]) for n, times in taken.items()}
    return {"rows": rows, "disturbance": others.cores()}


def _row(times, first, words, loss):
    """The numbers of a contender; `first` are the times of the first one."""
    taken = intervals.median(times)
    return {
        "words_per_second": [words / t for t in (taken.value, taken.high, taken.low)],
        "end_to_end": words * len(times) / sum(times),
        "milliseconds": 1e3 * taken.value,
        "steps": len(times),
        "settled": taken.width <= SETTLED,
        "first_loss": loss,
        "speed_up": intervals.ratio(first, times),
    }


def drawn(symbols: int, words: int = 100_000) -> Corpus:
    """Words by Zipf's law, as frequent as in a text; they mean nothing."""
    share = 1 / np.arange(1, symbols + 1)
    rng = np.random.default_rng(0)
    ids = rng.choice(symbols, words, p=share / share.sum()).astype(np.int32)
    return Corpus(ids, ids[:1000], Vocabulary(map(str, range(symbols))))


def measure(size: str, seconds: float, text: str = "", quick: bool = False) -> dict:
    """The result of one size: `small`, `medium`, `large` or `wide`."""
    recipe = RECIPES["ptb-large" if size == "wide" else f"ptb-{size}"]
    config = Config.from_mapping(recipe | (QUICK if quick else {}))
    names = FEW if size == "wide" else list(CONTENDERS)
    if quick:
        return race(config, drawn(SYMBOLS // 1000), names, 0.0, 2)
    if size == "wide":
        return race(config, drawn(SYMBOLS), names, seconds, LEAST[size])
    corpus = load_corpus(text, "words", most=10_000)
    return race(config, corpus, names, seconds, LEAST[size])


def report(results: dict) -> str:
    """The report with a table of all sizes, in Markdown."""
    lines = [
        [
            WIDE if size == "wide" else size,
            CONTENDERS[name][0] + mark(row | {"disturbance": result["disturbance"]}),
            "yes" if CONTENDERS[name][1] != "none" else "",
            "{:,.0f} [{:,.0f}, {:,.0f}]".format(*row["words_per_second"]),
            "{:.2f} [{:.2f}, {:.2f}]".format(*row["speed_up"]),
            f"{row['end_to_end']:,.0f}",
            f"{row['milliseconds']:.1f}",
            str(row["steps"]),
        ]
        for size, result in results["sizes"].items()
        for name, row in result["rows"].items()
    ]
    heads = ("size", "contender", "layer norm", "words/s", "speed-up", "end to end")
    parts = [
        "# Words per second of PTB's recipe",
        " ".join(__doc__.split("\n\n")[1].split()),
        origin.line(results),
        ABOUT_TABLE,
        table((*heads, "ms/step", "steps"), lines),
        PUBLISHED,
    ]
    if "sentences" in results:
        parts += [f"## {sentences.TITLE}", *sentences.report(results["sentences"])]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Measures, and writes the report and its numbers into the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(LEAST), help="any of them")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each size")
    parser.add_argument("--text", default="", help="folder in PTB's format")
    parser.add_argument("--quick", action="store_true", help="tiny models")
    options = parser.parse_args(argv)
    machine.prepare()
    results = origin.origin() | {
        "sizes": {
            size: measure(size, options.seconds, options.text, options.quick)
            for size in options.sizes.split(",")
        },
        "sentences": sentences.measure(options.quick),
    }
    origin.keep(origin.place("words", options.quick), results, report)


if __name__ == "__main__":
    main()
