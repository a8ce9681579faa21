"""Training that once lost work, or gave a wrong number or a misleading error."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from scanrnn import _files
from scanrnn.training import (
    Arrays,
    Checkpoints,
    Config,
    Prefetch,
    Streams,
    fit,
    init_state,
    make_mesh,
    make_model,
    make_optimizer,
    make_train_step,
    resume,
    rows_of_process,
    set_steps,
    shard_state,
    train,
)
from scanrnn.training._mesh import mesh_of_run
from tests.test_training_loop import KEY, OPTIMIZER, STEP, data, leaves, start


def test_run_whose_last_step_is_skipped_has_a_checkpoint(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(STEP, start(), data(batches=[4]), steps=5, checkpoints=checkpoints)
        assert checkpoints.latest() == 5
        again, _ = resume(checkpoints, start(), data())
    jax.tree.map(np.testing.assert_array_equal, leaves(again), leaves(fitted.state))


def test_run_that_ends_with_skipped_steps_has_a_checkpoint(tmp_path):
    bad = data(batches=[3, 4])
    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(STEP, start(), bad, steps=5, checkpoints=checkpoints)
        assert checkpoints.latest() == 5
        again, _ = resume(checkpoints, start(), data())
    assert int(again.counts.in_row) == 2
    jax.tree.map(np.testing.assert_array_equal, leaves(again), leaves(fitted.state))


def test_nothing_is_saved_between_skipped_steps_in_a_row(tmp_path):
    bad = data(batches=range(3, 9))
    with Checkpoints(tmp_path) as checkpoints:
        fit(STEP, start(), bad, steps=9, evaluate_every=3, checkpoints=checkpoints)
        assert checkpoints.steps() == [3, 9]


def test_calls_that_end_between_skipped_steps_keep_the_checkpoint_before(tmp_path):
    """A run that fits its steps into a time calls `fit` for each evaluation."""
    state, bad, found = start(), data(batches=range(2, 9)), []
    with Checkpoints(tmp_path) as checkpoints:
        for steps in (2, 4, 6, 8):
            state = fit(STEP, state, bad, steps=steps, checkpoints=checkpoints).state
            found.append(checkpoints.steps())
    assert found == [[2], [2, 4], [2, 6], [2, 8]]


def test_skipped_steps_of_an_earlier_call_count(tmp_path):
    bad, options = data(batches=range(2, 9)), {"patience": 5}
    with Checkpoints(tmp_path) as checkpoints:
        kept = {"checkpoints": checkpoints, "evaluate_every": 2} | options
        state = fit(STEP, start(), bad, steps=4, **kept).state
        state = fit(STEP, state, bad, steps=6, **options).state
        # A call that is stopped before its first step has no row of a step.
        state = fit(STEP, state, bad, steps=9, **kept, stop=lambda step: True).state
        assert checkpoints.steps() == [2, 6]
        with pytest.raises(FloatingPointError, match="step 8: 6 steps in a row"):
            fit(STEP, state, bad, steps=9, **kept)


@pytest.mark.parametrize("taken", [0, 2])
def test_folder_with_later_steps_is_refused(tmp_path, taken):
    with Checkpoints(tmp_path) as checkpoints:
        fit(STEP, start(), data(), steps=4, checkpoints=checkpoints)
        state = fit(STEP, start(), data(), steps=taken).state if taken else start()
        with pytest.raises(ValueError, match=f"step 4, but .*{taken} steps; .*resume"):
            fit(STEP, state, data(), steps=9, checkpoints=checkpoints)
        assert checkpoints.steps() == [4]


def test_resume_deletes_nothing_if_the_data_does_not_fit(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for steps in (3, 6):
            state, _ = resume(checkpoints, start(), batches := data())
            fit(STEP, state, batches, steps=steps, checkpoints=checkpoints)
        with pytest.raises(ValueError, match="state: .*, and the arrays of the run"):
            resume(checkpoints, start(), Arrays(np.ones((2, 3)), 1), step=3)
        assert checkpoints.steps() == [3, 6]


def test_resume_names_notes_without_the_data(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, start(), {"mine": 3})
        with pytest.raises(ValueError, match=r"no 'batches'.*\['mine'\]; `fit` saves"):
            resume(checkpoints, start(), data())


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda s: s._replace(params={"w": jnp.ones(3, jnp.bfloat16)}), "bfloat16"),
        (lambda s: s._replace(params={"w": jnp.ones(4)}), r"not float64\[4\]"),
        (lambda s: s._replace(params={"v": jnp.ones(3)}), "it has no params.v"),
        (lambda s: s._replace(carry=()), "it has carry, which is not wanted"),
    ],
)
def test_state_of_another_model_is_not_reported_as_damage(tmp_path, change, words):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, start(), {})
        with pytest.raises(ValueError, match=f"of another state: .*{words}") as caught:
            checkpoints.state(like=change(start()))
    assert "--restart" not in str(caught.value)


@pytest.mark.parametrize("processes", [2, 4])
def test_parts_have_the_same_streams_for_any_number_of_processes(processes):
    ids, each = np.arange(80), 8 // processes
    alone = next(Streams(ids, 8, 4, parts=2)).inputs
    rows = [(i * each, (i + 1) * each) for i in range(processes)]
    shared = [next(Streams(ids, 8, 4, parts=2, rows=r)).inputs for r in rows]
    np.testing.assert_array_equal(np.concatenate(shared, -1), alone)


def test_each_part_of_a_batch_is_shared_by_the_devices():
    class Mesh:
        shape = {"data": 2}

    with pytest.raises(ValueError, match="batch: got 6, .* 2 devices .* of 2 parts"):
        rows_of_process(Mesh(), 6, accumulate=2)  # pyright: ignore


def test_numbers_in_the_carry_are_copied_to_all_devices():
    carry = {"h": jnp.zeros((2, 3)), "mean": jnp.float32(0)}
    state = init_state({"w": jnp.ones(3)}, OPTIMIZER, carry=carry, key=KEY)
    found = shard_state(state, make_mesh(1)).carry
    specs = {name: leaf.sharding.spec for name, leaf in found.items()}
    assert specs == {"h": P("data"), "mean": P()}


def test_batches_ahead_that_fail_do_not_hinder_a_restore():
    class Two(Arrays):
        def __next__(self):
            if self._next == 2:
                raise StopIteration
            return super().__next__()

    batches = Prefetch(Two(np.arange(9), 3, seed=None), size=2)
    place = batches.state()
    first = next(batches)
    batches.restore(place)
    np.testing.assert_array_equal(next(batches), first)


def test_prefetch_goes_on_where_it_was_after_a_restore_that_is_refused():
    batches = Prefetch(Arrays(np.arange(9), 3, seed=None), size=2)
    next(batches)
    with pytest.raises(ValueError, match="^state: got"):
        batches.restore({"epoch": 0, "batch": 7})
    assert batches.state() == {"epoch": 0, "batch": 1, "seed": None}
    assert [next(batches).tolist() for _ in range(2)] == [[3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"precision": "float16,readot.compute=float32"}, "no layer 'readot'"),
        ({"precision": "rnn.output=float16"}, "rnn has no output; it has params"),
        ({"precision": "embed.carry=float16"}, "embed has no carry"),
    ],
)
def test_precision_of_layers_that_are_not_there_is_refused(options, words):
    with pytest.raises(ValueError, match=f"precision: .*{words}"):
        make_model(Config(features=4, **options), symbols=5)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"tokens": "words", "batching": "sentences", "loss": "sum"}, "loss: 'sum' is"),
        ({"batch": 8, "accumulate": 3}, "accumulate: got 3, want a divisor of batch=8"),
    ],
)
def test_options_that_do_not_go_together_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        Config(**options)


def test_the_first_step_of_the_warm_up_changes_the_parameters():
    config = Config(features=4, batch=2, steps=1, learning_rate=0.5)
    optimizer = make_optimizer(config)
    state = init_state({"w": jnp.ones(1)}, optimizer, key=KEY)
    state = set_steps(state, 100)
    moved, _ = optimizer.update({"w": jnp.ones(1)}, state.opt_state, state.params)
    # A tenth of the peak, plus weight decay.
    np.testing.assert_allclose(moved["w"], -0.05 * 1.01, rtol=1e-3)


def size_of_updates(config, count, epoch=None):
    """The size of the last of so many updates, for a gradient that stays one."""
    optimizer = make_optimizer(config, epoch)
    params = grads = {"w": jnp.ones(1)}
    opt_state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for _ in range(count):
        moved, opt_state = update(grads, opt_state, params)
    return -float(moved["w"][0])


@pytest.mark.parametrize(
    "options, epoch, factor",
    [
        ({}, None, 1.0),
        ({"epochs": 3}, None, 1.0),
        ({"epochs": 3}, 20, 0.02),
        ({"steps": 60}, None, 0.02),
        ({"steps": 60, "epochs": 3}, 1000, 0.02),
    ],
)
def test_learning_rate_falls_only_where_the_number_of_steps_is_known(
    options, epoch, factor
):
    config = Config(learning_rate=0.5, **options)
    # AdamW adds a hundredth for its weight decay.
    wanted = 0.5 * factor * 1.01
    np.testing.assert_allclose(size_of_updates(config, 80, epoch), wanted, rtol=1e-3)


@pytest.mark.parametrize("epoch, wanted", [(None, 0.5), (3, 0.125)])
def test_learning_rate_of_sgd_falls_only_where_the_epoch_is_known(epoch, wanted):
    config = Config(optimizer="sgd", learning_rate=0.5, decay_after=1)
    np.testing.assert_allclose(size_of_updates(config, 8, epoch), wanted, rtol=1e-6)


def test_devices_are_not_counted_out_to_several_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="^devices: got 2, but .* leave out --devices"):
        mesh_of_run(2, 1)
    for devices in (0, 1):
        assert mesh_of_run(devices, 1).size == jax.device_count()


@pytest.mark.parametrize("mask, mode", [(0o027, 0o640), (0o077, 0o600)])
def test_files_have_the_mode_that_the_process_gives_to_new_ones(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        with _files.replacing(tmp_path / "a") as partial:
            partial.write_text("all of it")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_files_that_are_replaced_keep_their_mode_link_and_long_name(tmp_path):
    real, link = tmp_path / ("n" * 255), tmp_path / "link"
    real.write_text("old")
    real.chmod(0o604)
    link.symlink_to(real.name)
    for path, text in ((real, "by name"), (link, "by link")):
        with _files.replacing(path) as partial:
            partial.write_text(text)
        assert real.read_text() == text
        assert real.stat().st_mode & 0o777 == 0o604
    assert link.is_symlink() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "result",
    [
        lambda loss: loss,
        lambda loss: (loss, {"acc": 1.0}),
        lambda loss: (loss, {"acc": 1.0, "n": 2}),
        lambda loss: (loss, ()),
        lambda loss: (loss, ((), (), ())),
    ],
    ids=["a loss", "one metric", "two metrics", "no carry", "three"],
)
def test_loss_functions_of_another_form_are_told_what_to_return(result):
    def loss_fn(params, carry, batch, key):
        return result(jnp.mean(params["w"] * batch))

    step = make_train_step(loss_fn, OPTIMIZER)
    with pytest.raises(
        TypeError, match=r"loss_fn: returned .*want \(loss, \(carry, out"
    ):
        step(start(), jnp.ones(3))


def test_streams_say_which_of_their_sizes_do_not_divide():
    with pytest.raises(ValueError, match=r"8 streams, and .* rows=\(1, 5\)"):
        Streams(np.arange(80), 8, 4, parts=2, rows=(1, 5))


def test_stop_after_skips_in_a_row_keeps_the_checkpoint_before(tmp_path):
    """When `stop` ends the run, all rows of steps have been read."""
    bad = data(batches=range(2, 8))
    with Checkpoints(tmp_path) as checkpoints:
        fit(
            STEP,
            start(),
            bad,
            steps=9,
            evaluate_every=2,
            checkpoints=checkpoints,
            stop=lambda step: step == 6,
        )
        assert checkpoints.steps() == [2, 6]


FILES = ["log.jsonl", "loss.png", "health.png", "sample.txt", "plan.txt"]


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("name", FILES)
def test_a_text_that_the_run_would_write_over_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("the text. " * 100)
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    for text in (name, f"../{tmp_path.name}/{name}"):
        with pytest.raises(ValueError, match=f"^text: .*{name}' is a file that a run"):
            train(Config(text=text, out=".", features=8, steps=1))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("restart", [False, True])
def test_files_of_the_user_in_a_folder_without_a_run_are_left(tmp_path, name, restart):
    (tmp_path / name).write_text("notes of the user")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"^out: .* no run, but a file {name} that"):
        train(Config(out=str(tmp_path), features=8, steps=1), restart=restart)
    assert contents(tmp_path) == before
