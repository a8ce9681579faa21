"""A whole training run: what it leaves, that it stops and goes on, what it refuses."""

import csv
import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from scanrnn.training import Checkpoints, Config, _loop, init_state, make_model, train

pytestmark = pytest.mark.usefixtures("in_32_bit")

TEXT = "the quick brown fox jumps over the lazy dog.\n" * 12


def make_config(folder):
    path = folder / "text.txt"
    path.write_text(TEXT)
    return Config(
        text=str(path),
        out=str(folder / "run"),
        features=8,
        layers=1,
        batch=2,
        window=6,
        steps=6,
        evaluate_every=4,
        sample=30,
    )


def changed(config, **values):
    return Config.from_mapping({**vars(config), **values})


def printed(config, **options):
    """Trains, and returns the outcome and what was printed."""
    console = Console(file=io.StringIO(), markup=False, soft_wrap=True)
    outcome = train(config, console=console, **options)
    return outcome, console.file.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run from start to end, with its outcome and what was printed."""
    config = make_config(tmp_path_factory.mktemp("finished"))
    with jax.enable_x64(False):
        return config, *printed(config)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A run that only trains: no sample, no plan and no timing, which take longer."""
    monkeypatch.setattr(_loop, "_finish", lambda run, console: None)
    return make_config(tmp_path)


@pytest.fixture
def interrupt_after(monkeypatch):
    """Sends SIGINT to this process after a given step, while training."""
    take_step = _loop._take_step

    def arrange(step):
        def interrupted(run):
            bits = take_step(run)
            if run.step == step:
                os.kill(os.getpid(), signal.SIGINT)
            return bits

        monkeypatch.setattr(_loop, "_take_step", interrupted)

    return arrange


def saved(config):
    """The newest checkpoint of a run: its step, notes and state."""
    checkpoints = Checkpoints(f"{config.out}/checkpoint")
    model = make_model(config, len(set(TEXT)))
    state = checkpoints.state(like=init_state(config, model))
    state = state._replace(key=jax.random.key_data(state.key))
    return checkpoints.latest(), checkpoints.notes(), state


def test_run_leaves_what_it_promises(finished):
    config, outcome, text = finished
    out = Path(config.out)
    rows = list(csv.DictReader((out / "metrics.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [bool(row["held_out"]) for row in rows] == [False] * 3 + [True, False, True]
    assert float(rows[-1]["held_out"]) == outcome.bits
    # Near the bits of a uniform guess, which is where a model starts.
    assert float(rows[0]["bits"]) == pytest.approx(np.log2(len(set(TEXT))), rel=0.3)
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    sample = (out / "sample.txt").read_text()
    assert len(sample) == 30 and set(sample) <= set(TEXT) and sample in text
    assert (out / "plan.txt").read_text().strip() in text
    assert "scanrnn.scan" in text and "lax.scan" in text
    assert "losses differ" not in text


def test_run_that_is_finished_says_so_and_how_to_start_again(finished):
    config, outcome, _ = finished
    again, text = printed(config)
    assert again == outcome
    assert "is finished: 6 steps" in text and "--restart" in text


def test_run_that_was_stopped_goes_on_bit_by_bit(finished, config, interrupt_after):
    interrupt_after(3)
    outcome, text = printed(config)
    assert (outcome.step, outcome.signal) == (3, signal.SIGINT)
    assert "Stopped after step 3 of 6; the checkpoint is in" in text
    assert saved(config)[0] == 3
    outcome, text = printed(config)
    assert "Going on after step 3" in text

    straight, straight_outcome, _ = finished
    assert outcome == straight_outcome
    step, notes, state = saved(config)
    straight_step, straight_notes, straight_state = saved(straight)
    assert step == straight_step == 6
    assert notes["position"] == straight_notes["position"] == 36
    assert [row[:3] for row in notes["history"]] == [
        row[:3] for row in straight_notes["history"]
    ]
    jax.tree.map(np.testing.assert_array_equal, state, straight_state)


def test_run_learns(config):
    config = changed(config, steps=120, learning_rate=2e-2)
    outcome, _ = printed(config)
    assert outcome.bits < 0.5 * np.log2(len(set(TEXT)))


def test_run_refuses_to_go_on_with_other_options_unless_restarted(
    config, interrupt_after
):
    interrupt_after(1)
    printed(config)
    other = changed(config, batch=3)
    with pytest.raises(ValueError, match="batch: got 3, but the run in .* with 2; use"):
        train(other)
    Path(config.text).write_text(TEXT + TEXT)
    with pytest.raises(ValueError, match="text: the run in .* on another text"):
        train(config)
    outcome, text = printed(other, restart=True)
    assert outcome.step == 1 and "Training: " in text


def test_run_stops_at_a_loss_that_is_not_finite(config):
    wild = changed(config, learning_rate=1e38)
    with pytest.raises(FloatingPointError, match="step 3: the loss is .*--restart"):
        printed(wild)


def test_run_stops_at_a_held_out_loss_that_is_not_finite(config):
    # The loss of the second step is that of the parameters before they are spoiled.
    wild = changed(config, learning_rate=1e38, steps=2)
    with pytest.raises(
        FloatingPointError, match="step 2: the held-out loss .*no check"
    ):
        printed(wild)
    assert Checkpoints(f"{config.out}/checkpoint").latest() is None


def test_run_stopped_with_parameters_that_are_not_finite_keeps_the_last_checkpoint(
    config, interrupt_after, monkeypatch
):
    interrupt_after(3)
    take_step = _loop._take_step

    def spoil(run):
        bits = take_step(run)
        if run.step == 3:
            spoiled = jax.tree.map(lambda a: a * np.nan, run.state.params)
            run.state = run.state._replace(params=spoiled)
        return bits

    monkeypatch.setattr(_loop, "_take_step", spoil)
    with pytest.raises(FloatingPointError, match="step 3: a parameter .* of step 2"):
        printed(changed(config, evaluate_every=2))
    assert saved(config)[0] == 2


def test_restart_killed_while_it_finishes_is_completed_by_the_next_command(
    config, monkeypatch
):
    def killed(run, console):
        raise KeyboardInterrupt

    marks = [Path(config.out) / name for name in ("sample.txt", "plan.txt")]
    printed(config)
    for mark in marks:
        mark.write_text("of the older run")
    assert "is finished" in printed(config)[1]
    monkeypatch.setattr(_loop, "_finish", killed)
    with pytest.raises(KeyboardInterrupt):
        printed(config, restart=True)
    assert not any(mark.exists() for mark in marks)
    completed = []
    monkeypatch.setattr(_loop, "_finish", lambda run, console: completed.append(run))
    assert "Going on after step 6" in printed(config)[1]
    assert len(completed) == 1


def test_run_stopped_after_its_last_step_is_completed_by_the_next_command(
    config, interrupt_after, monkeypatch
):
    interrupt_after(6)
    assert printed(config)[0].signal == signal.SIGINT
    completed = []
    monkeypatch.setattr(_loop, "_finish", lambda run, console: completed.append(run))
    assert printed(config)[0].signal is None
    assert len(completed) == 1


@pytest.mark.parametrize("name", ["sample.txt", "loss.png"])
def test_run_names_out_when_a_folder_stands_where_a_file_goes(config, name):
    (Path(config.out) / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"^out: cannot write in .*{name}.*--out"):
        printed(config)


def test_run_names_out_when_the_disk_is_full(config, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(ValueError, match="^out: cannot write in .*No space left"):
        printed(config)


def test_command_stopped_by_ctrl_c_leaves_a_checkpoint_and_goes_on(config):
    words = [sys.executable, "-m", "scanrnn", "train", "--steps", "100000"]
    for name in ("text", "out", "features", "layers", "batch", "window"):
        words += [f"--{name}", str(getattr(config, name))]
    words += ["--evaluate-every", "20"]
    checkpoints = []
    for number, wanted in ((signal.SIGINT, "Training: "), (signal.SIGTERM, "Going on")):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline()]
        while "bits/char" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert process.poll() is None, lines
        process.send_signal(number)
        lines += process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == 128 + number
        assert lines[0].startswith(wanted)
        assert lines[-1].endswith("Run the same command again to go on.")
        checkpoints.append(Checkpoints(f"{config.out}/checkpoint").latest())
    assert 20 <= checkpoints[0] < checkpoints[1]
