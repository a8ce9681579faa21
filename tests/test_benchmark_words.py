"""The benchmark of words per second: every contender trains the same recipe."""

import jax
import numpy as np
import pytest
from flax import nnx

from benchmarks import machine, scaling, words
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
        assert row["steps"] == 3 and row["words_per_second"] > 0
        assert row["speed_up"].low <= row["speed_up"].value <= row["speed_up"].high
    assert result["rows"]["plain"]["speed_up"] == (1, 1, 1)
    text = words.report({"tiny": result}, machine.describe())
    assert text.count("| tiny |") == len(names)


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
    measured = {(n, batch): 100.0 * n for n in scaling.DEVICES for batch in (32, 128)}
    text = scaling.report(measured, "a CPU", others=0.5)
    assert "| 4 | 400 (4.00x) | 400 (4.00x) |" in text
    assert "66.0 million parameters" in text and "306 MFLOP per word" in text
    assert all(link in text for link in scaling.LINKS)
