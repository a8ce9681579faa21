"""The benchmark of words per second: every contender trains the same recipe."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from benchmarks import origin, scaling, sentences, words
from scanrnn.training import RECIPES, Config, Corpus, LanguageModel, Vocabulary

pytestmark = pytest.mark.usefixtures("in_32_bit")


@pytest.mark.slow
def test_words_per_second_are_measured_of_every_contender():
    vocabulary = Vocabulary(map(str, range(11)))
    ids = np.random.default_rng(0).integers(0, 11, 4000).astype(np.int32)
    corpus = Corpus(ids, ids[:200], vocabulary)
    tiny = {"features": 6, "window": 4, "keep": 0.5}
    config = Config.from_mapping(RECIPES["ptb-small"] | tiny)
    names = [name for name in words.CONTENDERS if name != "torch"]
    result = words.race(config, corpus, names, seconds=0.0, least=3)
    for row in result["rows"].values():
        # Before training, the loss is near that of a uniform guess.
        assert abs(row["first_loss"] - np.log(11)) < 0.3
        value, low, high = row["words_per_second"]
        assert row["steps"] == 3 and 0 < low <= value <= high
        assert row["speed_up"].low <= row["speed_up"].value <= row["speed_up"].high
    assert result["rows"]["plain"]["speed_up"] == (1, 1, 1)
    about = origin.origin()
    text = words.report(about | {"sizes": {"tiny": result}})
    assert text.count("| tiny |") == len(names)
    assert about["date"] in text and about["commit"] in text


def quick(name, *words):
    """The results of a benchmark in its quick form, in a process of its own."""
    for needed in ("torch", *(["onnxruntime"] if name == "latency" else [])):
        pytest.importorskip(needed)
    written = origin.place(name, quick=True)
    written.unlink(missing_ok=True)
    call = [sys.executable, "-m", f"benchmarks.{name}", "--quick", *words]
    done = subprocess.run(call, cwd=origin.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(written.read_text())
    text = written.with_suffix(".md").read_text()
    assert results["date"] in text and done.stdout == text + "\n"
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaling", "latency"])
def test_benchmark_runs_in_its_quick_form(name):
    assert quick(name)["rows"]


@pytest.mark.slow
def test_words_in_their_quick_form_have_torch_and_buckets_against_one_bucket():
    """One size: the race above has the contenders of the others."""
    results = quick("words", "--sizes", "wide")
    assert {*results["sizes"]["wide"]["rows"]} == {*words.FEW} > {"torch"}
    one, *more = results["sentences"]["rows"]
    assert one["gain"] == [1, 1, 1]
    assert all(row["waste"] < one["waste"] for row in more)
    _, table = sentences.report(results["sentences"])
    assert table.count("\n") == 1 + len(sentences.BUCKETS)


def test_words_that_are_drawn_are_as_many_as_said():
    corpus = words.drawn(symbols=50, words=5000)
    assert len(corpus.vocabulary) == 50 and len(corpus.train) == 5000
    counts = np.bincount(corpus.train, minlength=50)
    assert 1.5 < counts[0] / counts[1] < 2.5  # Zipf's law


def test_scaling_counts_the_weights_of_the_model():
    model = LanguageModel(
        11, 6, num_layers=3, norm=None, residual=False, rngs=nnx.Rngs(0)
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
    assert scaling.parameters(6, 3, 11) == count
    # A ring of two devices sends each byte once, a ring of many devices twice.
    assert scaling.efficiency(1.0, 25, 100.0, 2) == 0.5
    assert scaling.efficiency(1.0, 25, 100.0, 10**9) == pytest.approx(1 / 3)


def test_scaling_is_reported_for_every_link_and_number_of_devices():
    row = {"batch": 32, "steps": 30, "disturbance": 0.5, "settled": True}
    rows = [
        row
        | {
            "devices": n,
            "per_second": [100.0 * n, 90.0 * n, 110.0 * n],
            "speed_up": [n, 0.9 * n, 1.1 * n],
        }
        for n in scaling.DEVICES
    ]
    about = origin.origin()
    text = scaling.report(about | {"rows": rows})
    found = "| 4 | 32 (disturbed) | 400 [360, 440] | 4.00 [3.60, 4.40] | 30 |"
    assert found in text
    assert about["date"] in text and about["commit"] in text
    assert text.index("## Measured here") < text.index("## On paper")
    assert "66.0 million parameters" in text and "306 MFLOP per word" in text
    assert all(link in text for link in scaling.LINKS)
