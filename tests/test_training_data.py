"""Text, vocabularies, and iterators over batches."""

import time

import numpy as np
import pytest

from scanrnn.training import (
    Arrays,
    Buckets,
    Prefetch,
    Streams,
    Vocabulary,
    load_corpus,
    load_docstrings,
    load_text,
    split_sentences,
)
from scanrnn.training._text import split_words


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
    vocabulary = Vocabulary.of(text)
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32
    assert ids.max() == len(vocabulary) - 1
    assert vocabulary.decode(ids) == text


def test_vocabulary_names_the_characters_it_lacks():
    with pytest.raises(ValueError, match="text: 'xy' is not in the vocabulary of 3"):
        Vocabulary("abc").encode("aybx")
    with pytest.raises(ValueError, match="tokens: got none"):
        Vocabulary("")
    with pytest.raises(ValueError, match="tokens: got one of them twice"):
        Vocabulary("aba")


def test_vocabulary_keeps_the_most_frequent_words_and_one_for_the_rest():
    words = "a a a b b c c d <unk>".split()
    vocabulary = Vocabulary.of(words, most=3)
    assert vocabulary.tokens == ("a", "b", "<unk>")
    assert vocabulary.encode(["d", "b", "zebra"]).tolist() == [2, 1, 2]
    assert "<unk>" in Vocabulary.of(["a", "b"], most=3).tokens


@pytest.mark.slow
def test_docstrings_are_a_corpus_of_words():
    words = load_docstrings()
    assert len(words) > 300_000 and 5_000 < len(set(words)) < 40_000
    assert words.count("<eos>") > 5_000
    corpus = load_corpus(tokens="words", most=1000)
    assert len(corpus.vocabulary) == 1000
    assert corpus.vocabulary.decode(corpus.train[:50]).startswith(words[0])
    assert len(corpus.train) + len(corpus.held_out) == len(words)


def test_words_are_split_with_the_end_of_every_paragraph():
    text = "Don't panic:\nit's 42!\n\n\nThe end"
    want = "don't panic : it's 42 ! <eos> the end <eos>"
    assert split_words(text) == want.split()


def test_corpus_reads_a_folder_in_the_format_of_ptb(tmp_path):
    (tmp_path / "ptb.train.txt").write_text(" the cat <unk> \n the N dogs \n")
    (tmp_path / "ptb.valid.txt").write_text(" the zebra \n")
    corpus = load_corpus(str(tmp_path))
    decode = corpus.vocabulary.decode
    assert decode(corpus.train) == "the cat <unk> <eos> the N dogs <eos>"
    assert decode(corpus.held_out) == "the <unk> <eos>"
    (tmp_path / "ptb.valid.txt").unlink()
    with pytest.raises(ValueError, match="has no ptb.valid.txt, want a text file or"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize("size, batch, window", [(10, 1, 1), (23, 3, 4), (40, 2, 7)])
def test_streams_read_on_without_a_gap_for_ever(size, batch, window):
    streams = Streams(np.arange(size, dtype=np.int32), batch, window)
    read = [[] for _ in range(batch)]
    for _ in range(3 * size // window):
        inputs, targets, resets = next(streams)
        assert inputs.shape == targets.shape == (window, batch)
        assert resets is None
        np.testing.assert_array_equal(targets, (inputs + 1) % size)
        for row, column in zip(read, inputs.T, strict=True):
            row.extend(column.tolist())
    for number, row in enumerate(read):
        start = number * (size // batch)
        assert row == [(start + i) % size for i in range(len(row))]


def test_streams_refuse_a_text_that_is_too_short():
    Streams(np.zeros(12), batch=2, window=5)
    with pytest.raises(ValueError, match=r"got 11 tokens.*2 \* 6 = 12"):
        Streams(np.zeros(11), batch=2, window=5)
    with pytest.raises(ValueError, match="parts: got 3, want a divisor of the 4"):
        Streams(np.zeros(30), batch=4, window=5, parts=3)


def test_streams_say_where_documents_start():
    starts = np.arange(12) % 5 == 0
    window = next(Streams(np.arange(12), batch=2, window=5, starts=starts))
    np.testing.assert_array_equal(window.resets, window.inputs % 5 == 0)


def test_streams_of_all_processes_and_parts_are_those_of_one():
    ids = np.arange(50)
    whole = next(Streams(ids, batch=6, window=4)).inputs
    halves = [next(Streams(ids, 6, 4, rows=rows)).inputs for rows in ((0, 3), (3, 6))]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)
    parts = next(Streams(ids, batch=6, window=4, parts=3)).inputs
    assert parts.shape == (3, 4, 2)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_arrays_give_every_example_once_in_an_epoch_in_a_new_order():
    batches = Arrays({"x": np.arange(10), "y": -np.arange(10)}, batch=3, seed=4)
    epochs = []
    for _ in range(2):
        chosen = [next(batches) for _ in range(3)]
        assert all((batch["x"] == -batch["y"]).all() for batch in chosen)
        epochs.append([x for batch in chosen for x in batch["x"].tolist()])
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]
    with pytest.raises(ValueError, match=r"first axes of \[2\], want .* batch=3"):
        Arrays(np.zeros(2), batch=3)


def draw_sequences():
    rng = np.random.default_rng(0)
    return [np.full(n, i, np.int32) for i, n in enumerate(rng.integers(1, 40, 57))]


@pytest.mark.parametrize("batch", [0, -1, 2.5])
def test_arrays_refuse_a_batch_that_is_no_positive_integer(batch):
    with pytest.raises(ValueError, match=f"batch: got {batch}, want an integer"):
        Arrays(np.ones([6, 2]), batch=batch)


def test_arrays_refuse_a_position_behind_their_end():
    batches = Arrays(np.ones([4, 2]), batch=2)
    with pytest.raises(ValueError, match="'batch': 2}, want .* a 'batch' from 0 to 1;"):
        batches.restore({"epoch": 0, "batch": 2})


def test_buckets_give_every_sequence_once_and_pad_little():
    sequences = draw_sequences()
    batches = Buckets(sequences, batch=4, buckets=6)
    assert batches.waste < 0.25 < Buckets(sequences, batch=4, buckets=1).waste
    for _ in range(2):
        seen, steps = [], 0
        for ids, lengths in (next(batches) for _ in range(len(batches))):
            assert ids.shape[0] >= lengths.max() and ids.shape[1] == 4
            steps += ids.size
            for column, length in zip(ids.T, lengths, strict=True):
                assert (column[length:] == 0).all()
                if length:
                    assert length == len(sequences[column[0]])
                    assert (column[:length] == column[0]).all()
                    seen.append(int(column[0]))
        assert sorted(seen) == list(range(57))
        np.testing.assert_allclose(batches.waste, 1 - sum(map(len, sequences)) / steps)


def test_buckets_have_as_many_shapes_as_there_are():
    batches = Buckets(draw_sequences(), batch=4, buckets=3)
    assert len({next(batches).ids.shape for _ in range(2 * len(batches))}) == 3
    with pytest.raises(ValueError, match="sequences: got none"):
        Buckets([], batch=4)


def test_sentences_are_cut_behind_their_end():
    sentences = split_sentences(np.array([3, 4, 0, 5, 0, 0, 6]), end=0)
    assert [s.tolist() for s in sentences] == [[3, 4, 0], [5, 0]]


MAKERS = {
    "streams": lambda: Streams(np.arange(40), batch=3, window=4),
    "arrays": lambda: Arrays((np.arange(10),), batch=4, seed=1),
    "buckets": lambda: Buckets(draw_sequences(), batch=5, buckets=3),
    "prefetch": lambda: Prefetch(Streams(np.arange(40), batch=3, window=4), size=3),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("taken", [0, 1, 17])
def test_batches_go_on_where_their_state_was_saved(name, taken):
    batches, again = MAKERS[name](), MAKERS[name]()
    for _ in range(taken):
        next(batches)
    place = batches.state()
    next(again)  # elsewhere
    again.restore(place)
    for _ in range(5):
        for a, b in zip(next(batches), next(again), strict=True):
            np.testing.assert_array_equal(a, b)
    assert batches.state() == again.state()


def test_prefetch_makes_batches_ahead_and_passes_errors_on():
    class Few(Streams):
        def __next__(self):
            if self.state()["position"] == 8:
                raise RuntimeError("no more")
            return super().__next__()

    source = Few(np.arange(40), batch=3, window=4)
    batches = Prefetch(source, size=1, place=lambda batch: batch.inputs + 1)
    np.testing.assert_array_equal(next(batches)[0], [1, 14, 27])
    deadline = time.monotonic() + 10
    while source.state()["position"] < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert batches.state() == {"position": 4} and source.state() == {"position": 8}
    next(batches)
    with pytest.raises(RuntimeError, match="no more"):
        next(batches)
