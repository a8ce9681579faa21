"""What buckets gain on sentences of different lengths: a part of `benchmarks.words`.

The lengths are drawn: no text is needed. An epoch is timed by its shapes: the median
time of a training step of each shape, times the number of batches of that shape.
"""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import scanrnn
from benchmarks import intervals
from benchmarks.course import _turns
from benchmarks.measure import mark
from benchmarks.tables import table
from scanrnn.training import Buckets

TITLE = "Sentences of different lengths"
# PTB's training text: 42,068 sentences of 887,521 words, the longest of 82 words. Their
# standard deviation is an assumption of ours.
MEAN, DEVIATION, LONGEST = 887_521 / 42_068, 10.0, 82
ABOUT = f"""\
Batches of {{batch}} sentences, padded to the longest of their bucket: {{sentences:,}}
sentences whose lengths are drawn from a gamma distribution with PTB's mean of
{MEAN:.1f} words and a standard deviation of {DEVIATION:.0f} (our assumption), rounded,
from 1 to {LONGEST} words. The model is {{layers}} layers of {{features}} units over
{{symbols:,}} words. With one bucket every batch is as long as the longest sentence. The
gain is in time; padding is the share of steps that are no words. Intervals are of
medians over rounds; {{rounds}} rounds."""
SIZES = {
    "features": 200,
    "layers": 2,
    "symbols": 10_000,
    "batch": 20,
    "sentences": 4200,
}
QUICK = {"features": 4, "layers": 1, "symbols": 11, "batch": 2, "sentences": 12}
BUCKETS = (1, 4, 8)
RATE = 1.0


def lengths(count: int, seed: int = 0) -> np.ndarray:
    """Lengths of sentences, in words."""
    shape, scale = (MEAN / DEVIATION) ** 2, DEVIATION**2 / MEAN
    found = np.random.default_rng(seed).gamma(shape, scale, count).round()
    return np.clip(found, 1, LONGEST).astype(int)


class Trainer:
    """A language model of sentences, with a training step for padded batches."""

    def __init__(self, sizes: dict):
        features, symbols = sizes["features"], sizes["symbols"]
        rngs = nnx.Rngs(0)
        options = {"num_layers": sizes["layers"], "time_major": True, "rngs": rngs}
        model = nnx.Dict(
            embed=nnx.Embed(symbols, features, rngs=rngs),
            rnn=scanrnn.nnx.LSTM(features, features, **options),
            readout=nnx.Linear(features, symbols, rngs=rngs),
        )
        self._graph, self._params = nnx.split(model)
        self._step = jax.jit(self._train, donate_argnums=0)

    def _train(self, params, ids, lengths):
        def loss_fn(params):
            model = nnx.merge(self._graph, params)
            ys = model["rnn"](
                model["embed"](ids[:-1]), seq_lengths=jnp.maximum(lengths - 1, 0)
            )
            logits = model["readout"](ys)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids[1:])
            inside = jnp.arange(1, len(ids))[:, None] < lengths
            return jnp.sum(losses * inside) / jnp.maximum(jnp.sum(inside), 1)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), loss

    def step(self, batch) -> float:
        self._params, loss = self._step(self._params, *batch)
        return float(loss)


def measure(quick: bool = False) -> dict:
    """The time of an epoch for each number of buckets."""
    sizes = QUICK if quick else SIZES
    rng = np.random.default_rng(0)
    texts = [
        rng.integers(0, sizes["symbols"], length + 1).astype(np.int32)
        for length in lengths(sizes["sentences"])
    ]
    trainer, batches, epochs, waste = Trainer(sizes), {}, {}, {}
    for buckets in BUCKETS:
        found = Buckets(texts, sizes["batch"], buckets=buckets)
        epoch = [next(found) for _ in range(len(found))]
        shapes = collections.Counter(len(batch.ids) for batch in epoch)
        batches |= {len(batch.ids): batch for batch in epoch}
        epochs[buckets], waste[buckets] = dict(shapes), found.waste
    calls = {str(T): (lambda b=b: trainer.step(b)) for T, b in batches.items()}
    row = _turns.turns(calls, quick)
    seconds = {
        buckets: _epoch(row["times"], shapes) for buckets, shapes in epochs.items()
    }
    words = sum(len(text) - 1 for text in texts)
    rows = [
        {
            "buckets": buckets,
            "waste": waste[buckets],
            "seconds": intervals.median(taken),
            "words_per_second": words / intervals.median(taken).value,
            "gain": intervals.ratio(seconds[1], taken),
        }
        for buckets, taken in seconds.items()
    ]
    about = {"rounds": len(seconds[1]), "rows": rows} | sizes
    return about | {k: row[k] for k in ("disturbance", "settled")}


def _epoch(times, shapes) -> list[float]:
    """The seconds of an epoch in each round: of all shapes, as often as they occur."""
    rounds = [
        count * np.asarray(times[str(T)]["seconds"]) for T, count in shapes.items()
    ]
    return np.sum(rounds, axis=0).tolist()


def report(found: dict) -> list[str]:
    """The part of the page, in Markdown."""
    lines = [
        [
            f"{row['buckets']}{mark(found)}",
            f"{100 * row['waste']:.0f}%",
            "{:.3g} [{:.3g}, {:.3g}]".format(*row["seconds"]),
            f"{row['words_per_second']:,.0f}",
            "{:.2f} [{:.2f}, {:.2f}]".format(*row["gain"]),
        ]
        for row in found["rows"]
    ]
    heads = ("buckets", "padding", "seconds an epoch", "words/s", "gain")
    return [ABOUT.format(**found), table(heads, lines)]
