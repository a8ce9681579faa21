"""What users bring to training: metrics, logs, names, optimizers, texts."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import scanrnn
from scanrnn.training import (
    Arrays,
    Buckets,
    Checkpoints,
    Log,
    Streams,
    Vocabulary,
    draw_curves,
    fit,
    init_state,
    load_text,
    make_train_step,
    probe,
    split_sentences,
)
from scanrnn.training._sample import _words
from scanrnn.training._text import split_words
from tests.test_training_loop import STEP, Rows, data, start


@pytest.mark.parametrize(
    "number", [np.float32(0.5), jnp.float32(0.5), jnp.bfloat16(0.5), np.array([0.5])]
)
def test_evaluation_may_return_arrays_of_one_number(tmp_path, number):
    log = Log(tmp_path / "log.jsonl")
    with Checkpoints(tmp_path / "checkpoint") as checkpoints:
        fit(
            STEP, start(), data(), steps=2, writers=[log], checkpoints=checkpoints,
            evaluate=lambda state: {"accuracy": number},
        )  # fmt: skip
        assert checkpoints.latest() == 2
    assert log.rows()[-1] == {"step": 2, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (0.5, "evaluate: returned float, want a dict"),
        (None, "evaluate: returned NoneType"),
        ({"a": [1, 2]}, r"evaluate: got a=\[1, 2\], want a number"),
        ({"a": "good"}, "evaluate: got a='good', want a number"),
    ],
)
def test_evaluation_that_is_no_dict_of_numbers_is_refused(found, message):
    with pytest.raises(TypeError, match=message):
        fit(STEP, start(), data(), steps=1, evaluate=lambda state: found)


def of_another_program(state, batch):
    return state, {"loss": jnp.zeros([])}


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"evaluate_every": 0}, ValueError, "evaluate_every: got 0, want a number"),
        ({"steps": "3"}, ValueError, "steps: got '3', want a number of at least 0"),
        ({"steps": -3}, ValueError, "steps: got -3, want a number of at least 0"),
        (
            {"steps": float("nan")},
            ValueError,
            "steps: got nan, want a number of at least 0",
        ),
        ({"patience": -1}, ValueError, "patience: got -1, want an integer of at least"),
        ({"patience": 2.5}, ValueError, "patience: got 2.5, want an integer"),
        ({"patience": "3"}, ValueError, "patience: got '3', want an integer"),
        ({"notes": ["a"]}, TypeError, "notes: got a list, want a dict that JSON can"),
        (
            {"notes": {"mine": 1, "size": np.int64(3)}},
            TypeError,
            r"notes: got 'size', which JSON cannot hold: .*int64 .*\.tolist\(\)",
        ),
        (
            {"notes": {"batches": 3}},
            ValueError,
            "notes: got the name 'batches', which is for the position of the data",
        ),
        ({"state": {"w": 1}}, TypeError, "state: got a dict, want what init_state"),
        ({"writers": Rows()}, TypeError, "writers: got a Rows, want a list"),
        ({"writers": print}, TypeError, "writers: got a builtin.*, want a list"),
        ({"writers": [print]}, TypeError, "writers: got .*print> without write and fl"),
        ({"checkpoints": "/a"}, TypeError, r"checkpoints: got '/a', want .*\(folder\)"),
        (
            {"train_step": jax.jit(of_another_program)},
            TypeError,
            "train_step: returned a dict, want a state and its Metrics; .*make_train",
        ),
    ],
)
def test_loop_refuses_what_it_cannot_use_by_name(change, error, message):
    good = {"train_step": STEP, "state": start(), "batches": data(), "steps": 1}
    with pytest.raises(error, match=f"^{message}"):
        fit(**good | change)


def test_position_that_json_cannot_hold_is_refused_before_the_first_step(tmp_path):
    class Counted(Arrays):
        def state(self):
            return super().state() | {"seen": np.int64(0)}

    def step(state, batch):
        raise AssertionError("this is the first step")

    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=r"^batches: state\(\) returned what JSON"):
            fit(
                step, start(), Counted(np.ones((3, 3)), 1), steps=1,
                checkpoints=checkpoints,
            )  # fmt: skip


def test_log_writes_arrays_and_numbers_that_are_not_finite(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.write({"step": 1, "a": np.arange(2), "b": [1.0, np.nan], "c": jnp.float32(2)})
    assert log.rows() == [{"step": 1, "a": [0, 1], "b": [1.0, None], "c": 2.0}]


@pytest.mark.parametrize(
    "content",
    [b"step,loss\n1,2\n", b"step,loss", b'{"loss": 1}\n', b"null\n", b"\xff\xfe\n"],
)
def test_log_leaves_a_file_of_others_alone(tmp_path, content):
    path = tmp_path / "results"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no log of a run"):
        Log(path)
    assert path.read_bytes() == content


def test_log_goes_on_behind_an_empty_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n\n{"step": 2}\n{"st')
    assert [row["step"] for row in Log(path).rows()] == [1, 2]
    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a.b": jnp.ones(1), "a": {"b": jnp.zeros(1)}}, "have the name 'a.b'"),
        ({"w": jnp.ones(2), "z": jnp.ones((0, 3))}, "'z' has no elements"),
    ],
)
def test_checkpoint_that_could_not_be_read_is_not_written(tmp_path, state, message):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match=message):
            checkpoints.save(1, state, {})
        assert checkpoints.latest() is None


def test_vocabulary_keeps_the_end_of_a_sentence():
    text = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["<eos>"] + ["a", "b", "<eos>"]
    vocabulary = Vocabulary.of(text, most=4)
    assert set(vocabulary.tokens) == {"a", "b", "<eos>", "<unk>"}
    (end,) = vocabulary.encode(["<eos>"])
    lengths = [len(s) for s in split_sentences(vocabulary.encode(text), end)]
    assert lengths == [13, 3]


def test_words_have_the_letters_of_every_alphabet():
    words = split_words("Über den Fluß_2. Привет, don't")
    wanted = "über den fluß _ 2 . привет , don't <eos>".split()
    assert words == wanted


def test_prompt_is_split_as_the_text_was():
    spaced = Vocabulary("mr. <unk> is N u.s. firms".split())
    assert _words("mr. <unk> is N", spaced) == ["mr.", "<unk>", "is", "N"]
    split = Vocabulary([*"it's 42 .".split(), "<unk>"])
    assert _words("It's 42.", split) == ["it's", "42", "."]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Arrays(np.arange(n), batch=2),
        lambda n: Buckets([np.arange(3)] * n, batch=2, buckets=1),
        lambda n: Streams(np.arange(n), batch=2, window=2),
    ],
)
def test_batches_refuse_a_position_that_they_do_not_have(make):
    long, short = make(40), make(8)
    for _ in range(7):
        next(long)
    for place in (long.state(), {"elsewhere": 1}):
        with pytest.raises(ValueError, match="state: got .* saved it"):
            short.restore(place)


ENDLESS = {
    "arrays": Arrays(np.arange(6), batch=2),
    "buckets": Buckets([np.arange(3)] * 6, batch=2, buckets=1),
    "streams": Streams(np.arange(6), batch=1, window=2),
}


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Arrays(np.arange(40), batch=n),
        lambda n: Buckets([np.arange(3)] * 40, batch=n, buckets=n),
        lambda n: Streams(np.arange(40), batch=n, window=n, parts=n),
    ],
)
def test_json_holds_positions_of_batches_made_with_numbers_of_numpy(make):
    batches = make(np.int64(2))
    next(batches)
    place = batches.state()
    assert json.loads(json.dumps(place)) == place
    batches.restore({k: v if v is None else np.int64(v) for k, v in place.items()})
    assert json.loads(json.dumps(batches.state())) == place


@pytest.mark.parametrize(
    "kind, name",
    [
        (kind, name)
        for kind, batches in ENDLESS.items()
        for name in batches.state()
        if name != "seed"  # older versions did not save it
    ],
)
@pytest.mark.parametrize("number", [-1, 0.5, None, "0"])
def test_batches_refuse_a_position_that_is_no_place(kind, name, number):
    batches = ENDLESS[kind]
    place = batches.state()
    for wrong in (place | {name: number}, {k: place[k] for k in place.keys() - {name}}):
        with pytest.raises(ValueError, match="^state: got .* saved it$"):
            batches.restore(wrong)
    batches.restore(place)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: Arrays(np.arange(40), batch=2, seed=seed),
        lambda seed: Buckets([np.arange(3)] * 40, batch=2, seed=seed),
    ],
)
def test_position_of_another_seed_is_refused(make):
    batches, same, other = make(np.int64(3)), make(3), make(4)
    next(batches)
    place = json.loads(json.dumps(batches.state()))
    with pytest.raises(ValueError, match="^state: got .*'seed': 3.* of seed=4 here"):
        other.restore(place)
    same.restore(place)
    assert same.state() == place
    del place["seed"]  # as an older version saved it
    other.restore(place)
    assert other.state() == place | {"seed": 4}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Buckets([np.arange(3)], batch=0), "batch: got 0"),
        (lambda: Buckets([np.arange(3)], batch=2.0), "batch: got 2.0, want an integer"),
        (lambda: Buckets([np.arange(3)], 1, buckets=0), "buckets: got 0, want an int"),
        (lambda: Buckets([np.arange(3)], 1, seed=None), "seed: got None, want an int"),
        (lambda: Streams(np.arange(9), 2.0, 2), "batch: got 2.0, want an integer"),
        (lambda: Streams(np.arange(9), 2, "2"), "window: got '2', want an integer"),
        (lambda: Buckets([np.arange(3)], batch=1, seed=0.5), "seed: got 0.5 of type"),
        (lambda: Arrays(np.arange(6), 2, seed="a"), "seed: got 'a' of type str, want"),
        (lambda: Arrays(np.arange(6), 2, rows=(0, 3)), r"rows: got \(0, 3\), want .*2"),
        (lambda: Arrays(np.arange(6), 2, rows=(1, 1)), r"rows: got \(1, 1\), want"),
        (lambda: Arrays(np.arange(6), 2, rows=(-1, 1)), r"rows: got \(-1, 1\), want"),
        (lambda: Streams(np.arange(9), 2, 2, rows=(1, 3)), r"rows: got \(1, 3\), wan"),
        (
            lambda: Streams(np.arange(9), 2, 2, starts=np.zeros(9, np.int32)),
            r"starts: got an array of int32, want one of booleans, .*astype\(bool\)",
        ),
        (
            lambda: Streams(np.arange(9), 2, 2, starts=np.zeros(8, bool)),
            r"starts: got the shape \(8,\), want \(9,\)",
        ),
        (lambda: Buckets([np.array([0.5, 0.7])], batch=1), "want integer ids"),
        (lambda: Streams(np.arange(9), 0, 2), "batch: got 0"),
        (lambda: Buckets([np.zeros(0, int)] * 3, batch=2), "sequences: got 3 empty"),
        (lambda: Streams("abc", 1, 1), "ids: got a str, .*encode"),
        (lambda: Streams([1, 2, 3], 1, 1), r"ids: got a list, .*np.asarray\(ids\)"),
        (
            lambda: Streams(np.arange(3), 1, 1, starts=[True, False, False]),
            r"starts: got a list, .*np.asarray\(starts\)",
        ),
        (lambda: Streams(np.arange(9), 2, 0), "window: got 0"),
        (lambda: Streams(np.arange(9), 2, 2, parts=0), "parts: got 0"),
    ],
)
def test_batches_refuse_sizes_and_ids_by_name(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_probe_takes_a_carry_with_a_counter():
    cell = scanrnn.cells.elman()
    params = cell.init(jax.random.key(0), 3, 4)
    xs = jnp.ones((5, 2, 3))

    def step(carry, x):
        carry, count = carry
        carry, y = cell.step(params, carry, x)
        return (carry, count + 1), y

    first = cell.initial_carry(params, xs[0])
    (plain,) = probe([functools.partial(cell.step, params)], [first], xs, jnp.sum)
    (counted,) = probe([step], [(first, jnp.int32(0))], xs, jnp.sum)
    np.testing.assert_allclose(counted.grad_norms, plain.grad_norms)


def test_step_gives_the_loss_to_optimizers_that_ask_for_it():
    optimizer = optax.chain(
        optax.sgd(1.0), optax.contrib.reduce_on_plateau(factor=0.5, patience=1)
    )

    def loss_fn(params, carry, batch, key):
        return jnp.sum(0 * params["w"]) + 1.0, (carry, ())

    step = make_train_step(loss_fn, optimizer)
    state = init_state({"w": jnp.ones(2)}, optimizer, key=jax.random.key(0))
    for _ in range(4):
        state, _ = step(state, jnp.ones(1))
    assert float(state.opt_state[1].scale) < 1.0


def test_carry_of_a_loss_function_may_be_a_number_of_python():
    def loss_fn(params, carry, batch, key):
        return jnp.sum(params["w"] ** 2), (2, ())

    optimizer = optax.sgd(0.1)
    state = init_state(
        {"w": jnp.ones(2)}, optimizer, carry=jnp.int32(0), key=jax.random.key(0)
    )
    state, _ = make_train_step(loss_fn, optimizer)(state, jnp.ones(1))
    assert int(state.carry) == 2


def test_state_of_a_model_with_random_streams_is_refused_with_the_way_out():
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    with pytest.raises(
        TypeError, match=r"no gradient; .*nnx.state\(model, nnx.Param\)"
    ):
        init_state(nnx.state(model), optax.sgd(0.1), key=jax.random.key(0))


@pytest.mark.parametrize("name", ["prodigy", "cocob", "dog"])
def test_optimizer_that_keeps_the_parameters_trains(name):
    """The memory of a state is reused, so parameters must not be in it twice."""
    optimizer = getattr(optax.contrib, name)()

    def loss_fn(params, carry, batch, key):
        return jnp.mean((params["w"] - batch) ** 2), (carry, ())

    params = {"w": jnp.zeros(3)}
    state = init_state(params, optimizer, key=jax.random.key(0))
    step = make_train_step(loss_fn, optimizer)
    for _ in range(3):
        state, metrics = step(state, jnp.ones((2, 3)))
        assert not metrics.skipped


@pytest.mark.parametrize("carry", [(), jnp.zeros((1, 4))], ids=["missing", "smaller"])
def test_carry_of_other_shapes_is_named(carry):
    def loss_fn(params, carry, batch, key):
        return jnp.mean(params["w"] * batch), (jnp.ones((2, 4)), ())

    optimizer = optax.sgd(0.1)
    state = init_state(
        {"w": jnp.ones(3)}, optimizer, carry=carry, key=jax.random.key(0)
    )
    step = make_train_step(loss_fn, optimizer)
    with pytest.raises(TypeError, match=r"loss_fn: returned the carry \(2, 4\)"):
        step(state, jnp.ones((2, 3)))


def test_names_of_an_evaluation_are_apart_from_those_of_a_step(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    numbers = {"loss": 0.5, "step": 7.0, "accuracy": 0.25}
    fit(STEP, start(), data(), steps=2, writers=[log], evaluate=lambda _: numbers)
    wanted = {"evaluate_loss": 0.5, "evaluate_step": 7.0, "accuracy": 0.25}
    assert log.rows()[-1] == {"step": 2} | wanted


def test_log_with_zeros_at_its_end_is_read(tmp_path):
    """A file system may leave them after a power failure."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n' + bytes(50))
    assert Log(path).rows() == [{"step": 1}]


def test_arrays_of_numbers_are_refused():
    with pytest.raises(TypeError, match="arrays: got the number 1"):
        Arrays([1, 2, 3, 4], batch=2)


def test_byte_order_mark_is_no_character(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab", encoding="utf-8-sig")
    assert load_text(str(path)) == "ab"


def test_negative_losses_are_drawn(tmp_path, monkeypatch):
    limits = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.set_ylim", lambda self, *limit: limits.append(limit)
    )
    for losses in ([-3.0, -1.0], [1.0, 3.0]):
        rows = [{"step": i, "loss": loss} for i, loss in enumerate(losses)]
        assert draw_curves(tmp_path / "loss.png", rows)
    assert limits == [((0, None),)]
