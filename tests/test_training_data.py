"""Text, vocabulary and streams."""

import numpy as np
import pytest

from scanrnn.training import Streams, Vocabulary, load_text


def test_load_text_reads_a_file_and_its_accents(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("déjà vu\n", encoding="utf-8")
    assert load_text(str(path)) == "déjà vu\n"


@pytest.mark.parametrize(
    "content, message",
    [(None, "cannot read"), (b"\xff\xfe\xfa", "cannot read"), (b"", "is empty")],
    ids=["missing", "not UTF-8", "empty"],
)
def test_load_text_says_what_is_wrong_with_a_file(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"text: .*{message}"):
        load_text(str(path))


def test_vocabulary_round_trips_a_text():
    text = load_text()[:5000]
    vocabulary = Vocabulary(text)
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32
    assert ids.max() == len(vocabulary) - 1
    assert vocabulary.decode(ids) == text


def test_vocabulary_names_the_characters_it_lacks():
    with pytest.raises(ValueError, match="text: 'xy' is not in the vocabulary of 3"):
        Vocabulary("abc").encode("aybx")
    with pytest.raises(ValueError, match="symbols: got no character"):
        Vocabulary("")


@pytest.mark.parametrize("size, batch, window", [(10, 1, 1), (23, 3, 4), (40, 2, 7)])
def test_streams_read_on_without_a_gap_for_ever(size, batch, window):
    streams = Streams(np.arange(size, dtype=np.int32), batch, window)
    position, read = 0, [[] for _ in range(batch)]
    for _ in range(3 * size // window):
        inputs, targets = streams.at(position)
        assert inputs.shape == targets.shape == (window, batch)
        np.testing.assert_array_equal(targets, (inputs + 1) % size)
        for row, column in zip(read, inputs.T, strict=True):
            row.extend(column.tolist())
        position = streams.after(position)
    for number, row in enumerate(read):
        start = number * (size // batch)
        assert row == [(start + i) % size for i in range(len(row))]


def test_streams_refuse_a_text_that_is_too_short():
    Streams(np.zeros(12), batch=2, window=5)
    with pytest.raises(ValueError, match=r"got 11 characters.*2 \* 6 = 12"):
        Streams(np.zeros(11), batch=2, window=5)
