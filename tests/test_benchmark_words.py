"""Words per second: every contender trains the same recipe."""

import numpy as np
import pytest

from benchmarks import machine, words
from scanrnn.training import RECIPES, Config, Corpus, Vocabulary

pytestmark = pytest.mark.usefixtures("in_32_bit")


def test_words_per_second_are_measured_of_every_contender():
    vocabulary = Vocabulary(map(str, range(11)))
    ids = np.random.default_rng(0).integers(0, 11, 4000).astype(np.int32)
    corpus = Corpus(ids, ids[:200], vocabulary)
    tiny = {"features": 6, "window": 4, "keep": 0.5}
    config = Config.from_mapping(RECIPES["ptb-small"] | tiny)
    names = [name for name in words.CONTENDERS if name != "torch"]
    result = words.race(config, corpus, names, seconds=0.0, least=3)
    for row in result["rows"].values():
        # Before it has learnt anything: that of a uniform guess, or near it.
        assert abs(row["first_loss"] - np.log(11)) < 0.3
        assert row["steps"] == 3 and row["words_per_second"] > 0
    text = words.report({"tiny": result}, machine.describe())
    assert text.count("| tiny |") == len(names)
