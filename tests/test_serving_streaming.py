"""Compare streams in chunks with whole sequences."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import scanrnn
from scanrnn.interop import load_safetensors, save_safetensors
from scanrnn.serving import Streaming
from tests.cell_table import CELLS, ONE_OF_EACH, H

# A row for each cell, the row with most options, and a cell that reads two old inputs.
ROWS = [
    pytest.param(CELLS[name], id=name)
    for name in dict.fromkeys([*ONE_OF_EACH, "lstm-norm-mi", "qrnn-2-fo"])
]
BUCKETS = (1, 4, 16)


def xs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def make(kind="LSTM", *sizes, **options):
    sizes = sizes or (3, 5)
    return getattr(scanrnn.nnx, kind)(*sizes, rngs=nnx.Rngs(0), **options)


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_chunks_of_every_cell_are_the_whole_sequence(row):
    rnn = scanrnn.nnx.RNN(row.cell, row.in_features, H, num_layers=1, rngs=nnx.Rngs(0))
    features = (*row.spatial, row.in_features)
    x = xs(2, 8, *features)
    stream = Streaming(rnn, 2, buckets=(1, 4), features=features)
    parts = [stream(x[:, :6]), stream(x[:, 6:7]), stream(x[:, 7:])]
    wanted = rnn(x, deterministic=True)
    np.testing.assert_allclose(
        np.concatenate(parts, axis=1), wanted, rtol=1e-4, atol=1e-5
    )


@pytest.fixture(scope="module")
def served():
    rnn = make("LSTM", 3, 8, num_layers=2, norm="ba2016", dropout=0.5)
    x = xs(2, 60, 3)
    return Streaming(rnn, 2, buckets=BUCKETS), x, rnn(x, deterministic=True)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 60), max_size=6).map(sorted))
def test_chunks_of_any_lengths_are_the_whole_sequence(served, cuts):
    stream, x, wanted = served
    stream.reset()
    cuts = [0, *cuts, 60]
    parts = [stream(x[:, a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert [part.shape[1] for part in parts] == np.diff(cuts).tolist()
    got = np.concatenate(parts, axis=1)
    # A norm of few features makes rounding errors larger.
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


def test_no_more_than_two_programs_are_compiled_for_a_bucket():
    stream = Streaming(make(), 2, buckets=BUCKETS)
    for size in range(1, 50):
        stream(xs(2, size, 3))
        stream({0: xs(size, 3), 1: xs(size // 2, 3)})
    assert stream._run._cache_size() <= 2 * len(BUCKETS)
    before = stream._run._cache_size()
    stream.reset(1)
    stream.leave(0)
    stream.join()
    stream(xs(2, 33, 3))
    assert stream._run._cache_size() == before


def test_layers_of_different_cells_are_streamed():
    two = [scanrnn.cells.gru(), scanrnn.cells.lstm()]
    rnn, x = scanrnn.nnx.RNN(two, 3, [4, 5], rngs=nnx.Rngs(0)), xs(2, 9, 3)
    stream = Streaming(rnn, 2, buckets=(1, 4))
    close(np.concatenate([stream(x[:, :6]), stream(x[:, 6:])], axis=1), rnn(x))


@pytest.mark.slow
def test_streams_join_and_leave_and_none_hears_of_the_others():
    rnn, rng = make("GRU"), np.random.default_rng(0)
    stream = Streaming(rnn, 3, buckets=BUCKETS)
    for place in range(3):
        stream.leave(place)
    running, ended = {}, []
    for _ in range(25):
        if len(running) < 3 and rng.random() < 0.6:
            running[stream.join()] = ([], [])
        fed = [place for place in running if rng.random() < 0.7]
        chunks = {place: xs(rng.integers(0, 20), 3, seed=rng) for place in fed}
        for place, ys in stream(chunks).items():
            running[place][0].append(chunks[place])
            running[place][1].append(ys)
        if running and rng.random() < 0.3:
            place = min(running)
            stream.leave(place)
            ended.append(running.pop(place))
    streams = [pair for pair in [*ended, *running.values()] if pair[0]]
    assert len(ended) > 3
    for chunks, outs in streams:
        x = np.concatenate(chunks)
        if len(x):
            close(np.concatenate(outs), rnn(x[None])[0])


def test_what_a_stream_that_waits_holds_is_not_touched():
    stream = Streaming(make(), 2, buckets=BUCKETS)
    stream(xs(2, 5, 3))
    before = stream.state()
    stream({0: np.full((7, 3), np.nan, np.float32)})
    after = stream.state()
    for name in ("carry.h", "carry.c"):
        np.testing.assert_array_equal(after[name][1], before[name][1])
        assert np.isnan(after[name][0]).all()


def test_a_reset_is_the_first_carry_even_a_learned_one():
    cell = scanrnn.cells.learned_carry(scanrnn.cells.gru())
    rnn = scanrnn.nnx.RNN(cell, 3, 5, rngs=nnx.Rngs(0))
    for name, param in rnn.layers[0].items():
        if name not in scanrnn.cells.gru().init(jax.random.key(0), 3, 5):
            param[...] = jnp.ones_like(param[...])
    stream, x = Streaming(rnn, 2), xs(2, 6, 3)
    first = stream(x)
    stream.reset(1)
    second = stream(x)
    close(second[1], first[1])
    assert abs(second[0] - first[0]).max() > 1e-3
    stream.reset()
    close(stream(x), rnn(x))
    stream.reset([0, 1])
    close(stream(x), rnn(x))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_saved_state_goes_on_in_another_process(tmp_path, dtype):
    rnn = make("LSTM", num_layers=2, carry_dtype=dtype)
    stream, x = Streaming(rnn, 2), xs(2, 9, 3)
    stream(x[:, :4])
    stream.leave(1)
    save_safetensors(tmp_path / "state", stream.state())
    wanted = stream({0: x[0, 4:]})[0]
    other = Streaming(rnn, 2)
    other.restore(load_safetensors(tmp_path / "state"))
    np.testing.assert_array_equal(other({0: x[0, 4:]})[0], wanted)
    assert other.join() == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("carry.h"),
        lambda s: s.update(other=np.ones(1)),
        lambda s: s.update({"carry.h": s["carry.h"][:1]}),
        lambda s: s.update({"carry.h": s["carry.h"].astype(np.float64)}),
        lambda s: s.update(open=np.ones(2, np.int8)),
    ],
)
def test_a_state_of_something_else_is_refused(change):
    stream = Streaming(make(), 2)
    state = stream.state()
    change(state)
    with pytest.raises(ValueError, match="Streaming: the state has"):
        stream.restore(state)
    with pytest.raises(TypeError, match=r"the state is a NoneType, want the dict that"):
        stream.restore(None)  # pyright: ignore


@pytest.mark.parametrize(
    "rnn, options, error, match",
    [
        (make(bidirectional=True), {}, ValueError, "bidirectional=True: it reads"),
        (make(reverse=True), {}, ValueError, "reverse=True: it reads"),
        (nnx.Linear(3, 5, rngs=nnx.Rngs(0)), {}, TypeError, "Linear"),
        (
            scanrnn.nnx.Bidirectional(make(), make()),
            {},
            TypeError,
            "rnn is a Bidirectional: it reads a sequence from its end too, .* give a",
        ),
        (
            scanrnn.nnx.LSTMCell(3, 5, rngs=nnx.Rngs(0)),
            {},
            TypeError,
            r"makes one step; give .*Streaming\(scanrnn.nnx.RNN\(cell\), features=\(D,",
        ),
        (make(), {"streams": 0}, ValueError, "streams must be at least 1, got 0"),
        (make(), {"streams": 2.5}, TypeError, "streams must be an int, got 2.5"),
        (make(), {"streams": "2"}, TypeError, "streams must be an int, got '2'"),
        (make(), {"buckets": ("1",)}, TypeError, r"buckets\[0\] must be an int"),
        (make(), {"buckets": (1, 4.5)}, TypeError, r"buckets\[1\] must be an int"),
        (make(), {"buckets": (0, 4)}, ValueError, r"buckets\[0\] must be at least 1"),
        (make(), {"buckets": 4}, TypeError, "buckets=4, want a tuple"),
        (make(), {"dtype": "foo"}, TypeError, "dtype must be a dtype such as"),
        (make(), {"features": 3}, TypeError, "features=3, want a tuple"),
        (make(), {"buckets": (4, 1)}, ValueError, r"buckets=\(4, 1\)"),
        (make(), {"buckets": ()}, ValueError, "buckets"),
        (make("ConvGRU", kernel_size=3), {}, ValueError, "give features="),
    ],
)
def test_what_cannot_be_streamed_is_refused(rnn, options, error, match):
    with pytest.raises(error, match=match):
        Streaming(rnn, **options)


def test_wrong_calls_are_refused():
    stream = Streaming(make(), 2)
    with pytest.raises(ValueError, match="all 2 places are taken"):
        stream.join()
    stream.leave(1)
    for call in (stream.leave, stream.reset, lambda k: stream({k: xs(4, 3)})):
        with pytest.raises(KeyError, match=r"no stream 1; .* are \[0\]"):
            call(1)
    for shape in ((2, 3), (1, 4, 3), (2, 4, 4), (3,)):
        with pytest.raises(ValueError, match="chunk has shape"):
            stream(xs(*shape))
    with pytest.raises(ValueError, match="stream 0 has shape"):
        stream({0: xs(4, 2)})
    assert stream({}) == {}


def test_a_number_of_a_stream_is_an_integer():
    stream, x = Streaming(make(), 2), xs(2, 4, 3)
    first = stream(x)
    stream.reset(np.int64(1))
    close(stream({np.int64(1): x[1]})[1], first[1])
    stream.reset(np.arange(2))
    close(stream(x), first)
    for number in (np.array(1), jnp.array(1)):
        stream.reset(number)
        close(stream({1: x[1]})[1], first[1])
    for number in (True, np.True_, 0.0, "0", None):
        with pytest.raises(TypeError, match="is an integer, got .* of type "):
            stream({number: x[0]})
    for number in (True, 0.0, [0.0], [0, True], np.array(0.0), np.array(True)):
        with pytest.raises(TypeError, match="is an integer, got .* of type "):
            stream.reset(number)


def test_numbers_that_would_be_lost_are_refused():
    stream, x = Streaming(make(), 2), xs(2, 4, 3)
    for wrong in (x + 1j, x.astype(object), x.astype(str)):
        with pytest.raises(TypeError, match="chunk has dtype .* float32; convert it"):
            stream(wrong)
        with pytest.raises(TypeError, match="the chunk of stream 1 has dtype"):
            stream({1: wrong[1]})
    with pytest.raises(ValueError, match="chunk is no array of numbers; .* a dict"):
        stream([[[0.0] * 3], [[0.0] * 3] * 2])
    with pytest.raises(ValueError, match="the chunk of stream 1 is no array of"):
        stream({1: [[0.0], [0.0, 0.0]]})
    with pytest.raises(TypeError, match="float32, which does not go into int32"):
        Streaming(make(), 2, dtype=np.int32)(x)
    wanted = stream(x)
    for dtype in (np.float64, jnp.bfloat16, np.int8):
        stream.reset()
        got = stream(x.astype(dtype))
        stream.reset()
        close(got, stream(x.astype(dtype).astype(np.float32)))
    stream.reset()
    close(stream(jnp.asarray(x)), wanted)


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 9])
def test_outputs_of_any_length_are_read_only(steps):
    stream, x = Streaming(make(), 2, buckets=(1, 4)), xs(2, steps, 3)
    some = stream({0: x[0], 1: x[1, :1]})
    one = Streaming(make(), 1, buckets=(1, 4))({0: x[0]})
    for ys in (stream(x), *some.values(), *one.values()):
        assert not ys.flags.writeable


def test_a_call_takes_a_bucket_as_it_is_and_writes_over_the_carry(monkeypatch):
    stream, x = Streaming(make(), 2, buckets=(1, 4)), xs(2, 4, 3)
    first, run, seen = stream(x), stream._run, []

    def spy(weights, carry, *rest):
        seen[:] = carry, *rest
        return run(weights, carry, *rest)

    monkeypatch.setattr(stream, "_run", spy)
    stream(x)
    assert seen[1] is x and seen[2] is None
    assert all(leaf.is_deleted() for leaf in seen[0])
    stream({0: x[0], 1: x[1]})
    assert seen[2] is None
    # A reset repairs the carry after a call that was interrupted.
    jax.tree.map(lambda leaf: leaf.delete(), stream._carry)
    stream.reset()
    np.testing.assert_array_equal(stream(x), first)


def test_a_training_step_that_writes_over_the_weights_leaves_a_stream_alone():
    rnn, x = make(), xs(2, 4, 3)
    stream, wanted = Streaming(rnn, 2), rnn(x)
    jax.tree.map(lambda leaf: leaf.delete(), nnx.state(rnn))
    close(stream(x), wanted)


def test_copies_of_weights_stay_on_the_devices_of_the_layer():
    rnn = make()
    (device,) = jax.devices()[:1]
    nnx.update(rnn, jax.device_put(nnx.state(rnn), device))
    for leaf in Streaming(rnn)._weights:
        assert leaf.committed and leaf.devices() == {device}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_call_that_was_interrupted_is_not_forgotten(monkeypatch, late, error):
    stream, x = Streaming(make(), 2, buckets=(1, 4)), xs(2, 12, 3)
    stream.leave(1)
    first, run, calls = stream(x), stream._run, []
    before = stream.state()
    wanted = stream(x)

    def interrupted(*args):
        calls.append(args)
        out = run(*args)
        if len(calls) > late:
            raise error
        return out

    stream.restore(before)
    monkeypatch.setattr(stream, "_run", interrupted)
    with pytest.raises(error):
        stream(x)
    monkeypatch.undo()
    for call in (lambda: stream(x), stream.state, stream.join, lambda: stream.reset(0)):
        with pytest.raises(
            RuntimeError, match=r"call reset\(\) .* or restore\(state\)"
        ):
            call()
    stream.restore(before)
    np.testing.assert_array_equal(stream(x), wanted)
    assert stream.join() == 1
    stream.reset()
    np.testing.assert_array_equal(stream(x), first)


def test_a_chunk_that_is_refused_loses_nothing():
    stream, x = Streaming(make(), 2), xs(2, 4, 3)
    rnn = make()
    wanted = rnn(np.concatenate([x, x], axis=1))[:, 4:]
    stream(x)
    with pytest.raises(ValueError, match="chunk has shape"):
        stream(x[:1])
    close(stream(x), wanted)


class Doubled(nnx.GRUCell):
    """A cell with two outputs of different shapes."""

    def __call__(self, carry, inputs):
        carry, y = super().__call__(carry, inputs)
        return carry, (y, y.sum(-1))


def test_outputs_of_a_tree_are_those_of_the_whole_sequence():
    rnn = scanrnn.nnx.RNN(Doubled(3, 5, rngs=nnx.Rngs(0)))
    inputs = xs(2, 23, 3)
    wanted = rnn(inputs)
    stream = Streaming(rnn, streams=2, buckets=BUCKETS, features=(3,))
    parts = [stream(inputs[:, :3]), stream(inputs[:, 3:4]), stream(inputs[:, 4:])]
    for i, whole in enumerate(wanted):
        close(np.concatenate([part[i] for part in parts], axis=1), whole)
    stream.reset()
    some = stream({1: inputs[1, :7]})[1]
    for found, whole in zip(some, wanted, strict=True):
        close(found, whole[1, :7])


def test_threads_take_turns():
    """Two calls at once would use the memory of the same carry."""
    stream, inputs = Streaming(make(), streams=8), xs(8, 40, 3)

    def feed(k):
        parts = [stream({k: inputs[k, i : i + 1]})[k] for i in range(40)]
        return np.concatenate(parts)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = np.stack(list(pool.map(feed, range(8))))
    close(found, make()(inputs))
