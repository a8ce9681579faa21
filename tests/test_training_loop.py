"""The training loop: rows, checkpoints, resuming, and reasons to stop."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scanrnn.training import (
    Arrays,
    Checkpoints,
    Log,
    TensorBoard,
    draw_curves,
    fit,
    init_state,
    make_train_step,
    resume,
)

KEY = jax.random.key(3)
OPTIMIZER = optax.adam(0.05)


def loss_fn(params, carry, batch, key):
    noise = 0.1 * jax.random.normal(key)
    outputs = params["w"] * batch
    return jnp.mean((outputs - 1 + noise) ** 2), (carry + jnp.sum(batch), outputs)


def start():
    return init_state({"w": jnp.ones(3)}, OPTIMIZER, carry=jnp.zeros([]), key=KEY)


def data(**spoiled):
    """Twelve batches in an epoch; those in `spoiled` are not finite."""
    rows = np.random.default_rng(0).normal(size=(12, 3))
    for number in spoiled.get("batches", ()):
        rows[number] = np.nan
    return Arrays(rows, batch=1, seed=None)


STEP = make_train_step(loss_fn, OPTIMIZER, clip=1.0)


class Rows(list):
    """A writer that keeps rows."""

    def write(self, row):
        self.append(row)

    def flush(self):
        self.flushed = len(self)


def leaves(state):
    state = state._replace(key=jax.random.key_data(state.key))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def test_loop_writes_a_row_for_every_step_and_evaluation():
    rows = Rows()
    fitted = fit(
        STEP,
        start(),
        data(),
        steps=7,
        writers=[rows],
        evaluate=lambda state: {"held_out": float(state.params["w"][0])},
        evaluate_every=3,
    )
    assert (fitted.step, fitted.stopped) == (7, False)
    assert [(r["step"], "loss" in r) for r in rows] == [
        *[(1, True), (2, True), (3, True), (3, False), (4, True), (5, True)],
        *[(6, True), (6, False), (7, True), (7, False)],
    ]
    assert set(rows[0]) == {
        *("step", "loss", "grad_norm", "clip_fraction", "loss_scale", "skipped"),
        *("in_row", "fault", "seconds"),
    }
    assert rows.flushed == len(rows)


@pytest.mark.parametrize("stops", [[2], [1, 4, 5]])
def test_loop_that_is_stopped_and_resumed_gives_the_same_bits(tmp_path, stops):
    straight, rows = Rows(), Rows()
    want = fit(STEP, start(), data(batches=[5]), steps=9, writers=[straight]).state
    for last in (*stops, 99):
        checkpoints, batches = Checkpoints(tmp_path), data(batches=[5])
        state, _ = resume(checkpoints, start(), batches)
        state = fit(
            STEP,
            state,
            batches,
            steps=9,
            writers=[rows],
            checkpoints=checkpoints,
            stop=lambda step, last=last: step == last,
        ).state
        checkpoints.close()
    for got, wanted in zip(leaves(state), leaves(want), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for row in itertools.chain(rows, straight):
        row.pop("seconds")
    assert str(rows) == str(straight)  # as text: NaN is not equal to NaN


def test_loop_stops_after_too_many_bad_steps_and_keeps_the_last_good_checkpoint(
    tmp_path,
):
    checkpoints, rows = Checkpoints(tmp_path), Rows()
    bad = data(batches=[4, 6, 7, 8, 9])
    with pytest.raises(FloatingPointError) as caught:
        fit(
            STEP,
            start(),
            bad,
            steps=50,
            writers=[rows],
            checkpoints=checkpoints,
            evaluate_every=2,
            patience=3,
        )
    assert "step 10: 4 steps in a row were skipped" in str(caught.value)
    assert "not finite in the last one: outputs or carry (" in str(caught.value)
    assert "the last checkpoint is of step 6" in str(caught.value)
    assert [r["step"] for r in rows if r["skipped"]] == [5, 7, 8, 9, 10]
    state, _ = resume(checkpoints, start(), bad)
    assert int(state.counts.steps) == 6 and np.isfinite(state.params["w"]).all()


def test_loop_stops_at_an_evaluation_that_is_not_finite(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(FloatingPointError, match="step 2: an evaluation is not finite"):
        fit(
            STEP,
            start(),
            data(),
            steps=4,
            evaluate=lambda state: {"held_out": np.nan},
            evaluate_every=2,
            checkpoints=checkpoints,
        )
    assert checkpoints.latest() is None


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([1, 2], TypeError, "got a list without __next__ and state"),
        (iter([1, 2]), TypeError, "got a list_iterator without state"),
    ],
)
def test_loop_refuses_data_without_a_position_before_the_first_step(
    tmp_path, batches, error, message
):
    step = make_train_step(loss_fn, OPTIMIZER)
    with pytest.raises(error, match=message):
        fit(step, start(), batches, steps=3, checkpoints=Checkpoints(tmp_path / "a"))


def test_loop_says_where_the_data_ended():
    step = make_train_step(loss_fn, OPTIMIZER)
    rows = iter([jnp.ones(3)] * 2)
    with pytest.raises(ValueError, match="ended at step 2, want batches for steps=5"):
        fit(step, start(), rows, steps=5)


def test_checkpoints_refuse_a_file(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"notes.txt' is a file, want a folder"):
        Checkpoints(file)


def test_loop_has_its_rows_on_the_disk_before_a_checkpoint(tmp_path):
    log = Log(tmp_path / "log.jsonl")

    class Watched(Checkpoints):
        def save(self, step, state, notes):
            rows = Log(log.path).rows()
            assert [r["step"] for r in rows] == list(range(1, step + 1))
            super().save(step, state, notes)

    checkpoints = Watched(tmp_path / "checkpoint")
    options = {"writers": [log], "checkpoints": checkpoints, "evaluate_every": 4}
    assert fit(STEP, start(), data(), steps=9, **options).step == 9
    assert checkpoints.latest() == 9


def test_loop_reads_nothing_of_a_step_before_two_more_are_on_their_way(monkeypatch):
    order, device_get = [], jax.device_get

    def watched(tree):
        order.append("read")
        return device_get(tree)

    def step(state, batch):
        order.append("step")
        return STEP(state, batch)

    monkeypatch.setattr(jax, "device_get", watched)
    fit(step, start(), data(), steps=5, writers=[Rows()])
    assert order == ["step"] * 3 + ["read", "step"] * 2 + ["read"] * 3


def test_log_goes_on_behind_a_line_that_was_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for step in (1, 2, 3):
        log.write({"step": step, "loss": float("inf") if step == 2 else 0.5})
    log.flush()
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [row["step"] for row in Log(path).rows()] == [1, 2, 3]
    again = Log(path, last=2)
    again.write({"step": 3, "loss": 0.25})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in lines] == [
        (1, 0.5),
        (2, None),
        (3, 0.25),
    ]


def test_tensorboard_gets_numbers_or_says_what_to_install(tmp_path, monkeypatch):
    writer = TensorBoard(tmp_path)
    writer.write({"step": 1, "loss": 0.5, "fault": "none"})
    writer.close()
    assert b"loss" in next(tmp_path.glob("events*")).read_bytes()
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        TensorBoard(tmp_path)


def test_curves_are_drawn_where_steps_were_skipped(tmp_path):
    rows = [
        {"step": 1, "loss": 3.0, "grad_norm": 1.0, "skipped": False},
        {"step": 2, "loss": None, "grad_norm": None, "skipped": True},
        {"step": 2, "held_out": 2.0},
    ]
    assert draw_curves(tmp_path / "loss.png", rows)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_curves_of_a_text_of_one_character_are_drawn_without_a_warning(tmp_path):
    row = {"loss": 0.0, "grad_norm": 0.0, "skipped": False}
    rows = [{"step": n, "held_out": 0.0} | row for n in (1, 2)]
    assert draw_curves(tmp_path / "loss.png", rows)
    assert draw_curves(tmp_path / "loss.png", [])
