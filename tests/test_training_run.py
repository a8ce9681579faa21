"""A whole training run: its files, stopping and resuming, and errors."""

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from rich.console import Console

from scanrnn.training import (
    Checkpoints,
    Config,
    Log,
    _train,
    load_model,
    make_model,
    make_training,
    train,
)

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
    """Train, and return the outcome and what was printed."""
    console = Console(file=io.StringIO(), markup=False, soft_wrap=True)
    outcome = train(config, console=console, **options)
    return outcome, console.file.getvalue()


def rows_of(config):
    rows = Log(Path(config.out) / "log.jsonl").rows()
    return [{n: v for n, v in row.items() if n != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run from start to end, with its outcome and what was printed."""
    config = make_config(tmp_path_factory.mktemp("finished"))
    with jax.enable_x64(False):
        return config, *printed(config)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A run that only trains. Samples, plans and timings would take longer."""
    monkeypatch.setattr(_train, "_finish", lambda run, console: None)
    return make_config(tmp_path)


@pytest.fixture
def interrupt_after(monkeypatch):
    """Send SIGINT to this process after a given step of training."""
    fit = _train.fit

    def arrange(last):
        def interrupted(train_step, state, batches, **options):
            def step(state, batch):
                state, metrics = train_step(state, batch)
                if int(state.counts.steps) == last:
                    os.kill(os.getpid(), signal.SIGINT)
                return state, metrics

            return fit(step, state, batches, **options)

        monkeypatch.setattr(_train, "fit", interrupted)

    return arrange


def saved(config):
    """The newest checkpoint of a run: its step, notes and state."""
    checkpoints = Checkpoints(f"{config.out}/checkpoint")
    model = make_model(config, len(set(TEXT)))
    state = checkpoints.state(like=make_training(config, model)[0])
    state = state._replace(key=jax.random.key_data(state.key))
    return checkpoints.latest(), checkpoints.notes(), state


@pytest.mark.parametrize("drawn", [True, False])
def test_run_names_the_curves_only_where_they_are_drawn(config, monkeypatch, drawn):
    """Without matplotlib there are none."""
    monkeypatch.setattr(_train, "draw_curves", lambda *_: drawn)
    _, text = printed(config)
    assert "checkpoint of step 6, log.jsonl" in text and ("loss.png" in text) == drawn


def test_run_leaves_what_it_promises(finished):
    config, outcome, text = finished
    out = Path(config.out)
    rows = rows_of(config)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4, 5, 6, 6]
    assert ["held_out" in row for row in rows] == [
        *[False] * 4,
        *[True, False, False, True],
    ]
    assert rows[-1]["held_out"] == outcome.held_out
    # A model starts near the bits of a uniform guess.
    assert rows[0]["loss"] == pytest.approx(np.log2(len(set(TEXT))), rel=0.3)
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    sample = (out / "sample.txt").read_text()
    assert len(sample) == 30 and set(sample) <= set(TEXT) and sample in text
    plan = (out / "plan.txt").read_text()
    assert plan.partition("\n\n")[0] in text and "Before the loop" in plan
    assert "scanrnn.scan" in text and "lax.scan" in text
    assert "losses differ" not in text
    assert "\n6 steps of 12 tokens" in text
    assert "training will take about" in text


def test_run_that_is_finished_says_so_and_how_to_start_again(finished):
    config, outcome, _ = finished
    again, text = printed(config)
    assert again == outcome
    assert "is finished: 6 steps" in text and "--restart" in text


@pytest.mark.slow
def test_run_that_was_stopped_goes_on_bit_by_bit(finished, config, interrupt_after):
    interrupt_after(3)
    outcome, text = printed(config)
    assert (outcome.step, outcome.signal) == (3, signal.SIGINT)
    assert "Stopped after step 3 of 6; checkpoint of step 3" in text
    assert saved(config)[0] == 3
    outcome, text = printed(config)
    assert "Going on after step 3" in text

    straight, straight_outcome, _ = finished
    assert outcome == straight_outcome
    step, notes, state = saved(config)
    straight_step, straight_notes, straight_state = saved(straight)
    assert step == straight_step == 6
    assert notes["batches"] == straight_notes["batches"] == {"position": 36}
    assert rows_of(config) == rows_of(straight)
    jax.tree.map(np.testing.assert_array_equal, state, straight_state)


QUICK = {"sentences", "float16"}
VARIANTS = {
    "words": {"tokens": "words", "precision": "float32", "norm": "none"},
    "sentences": {"tokens": "words", "batching": "sentences"},
    "accumulated": {"accumulate": 2, "batch": 4, "cell": "gru", "layers": 2},
    "float16": {"precision": "float16", "norm": "rms"},
    "recipe of PTB": {
        **{"tokens": "words", "optimizer": "sgd", "loss": "sum", "keep": 0.5},
        **{"uniform": 0.1, "norm": "none", "residual": False, "vocabulary": 8},
        **{"learning_rate": 1.0, "decay_after": 100},
    },
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in VARIANTS
    ],
)
def test_run_learns(config, name):
    if name == "sentences":
        Path(config.text).write_text(TEXT.replace(".\n", ".\n\n"))
    options = {"steps": 60, "learning_rate": 2e-2, "evaluate_every": 30}
    outcome, text = printed(changed(config, **(options | VARIANTS[name])))
    rows = rows_of(config)
    held_out = [row["held_out"] for row in rows if "held_out" in row]
    assert held_out[-1] == outcome.held_out < 0.8 * rows[0]["loss"]
    assert not rows[-2]["skipped"]
    assert ("of all steps are padding" in text) == (name == "sentences")
    assert ("perplexity" in rows[-1]) == ("tokens" in VARIANTS[name])
    scale = 65536.0 if name == "float16" else 1.0
    assert rows[0]["loss_scale"] == scale


@pytest.mark.slow
def test_run_fits_its_steps_into_the_time_it_is_given(config, monkeypatch):
    timed = changed(config, steps=0, minutes=0.05, evaluate_every=150)
    outcome, text = printed(timed)
    assert "\nabout " in text
    assert outcome.step >= 200 and saved(timed)[1]["steps"] == outcome.step
    steps = saved(timed)[2].opt_state.hyperparams["steps"]
    assert float(steps) == outcome.step


@pytest.mark.slow
def test_run_reads_its_text_as_often_as_it_is_told(config):
    # 486 characters to train on, in 2 streams of 40 windows of 6.
    outcome, text = printed(changed(config, steps=0, epochs=3))
    assert outcome.step == 3 * 40 and "\n120 steps" in text


def test_run_compiles_its_step_once(config, monkeypatch):
    runs = []
    monkeypatch.setattr(_train, "_finish", lambda run, console: runs.append(run))
    printed(changed(config, steps=0, minutes=0.01, evaluate_every=70))
    assert runs[0].train_step._cache_size() == 1


@pytest.mark.slow
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


def test_run_stops_when_nothing_is_finite_any_more(config):
    wild = changed(config, learning_rate=1e38, steps=30, evaluate_every=30, patience=5)
    with pytest.raises(FloatingPointError, match="6 steps in a row were skipped"):
        printed(wild)


@pytest.mark.slow
def test_run_goes_on_from_an_older_checkpoint_where_the_newest_is_damaged(config):
    straight, _ = printed(config)
    rows, want = rows_of(config), saved(config)[2]
    for path in (Path(config.out) / "checkpoint" / "6" / "notes").iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="step 6 cannot be read; .*--resume-from 4"):
        printed(config)
    outcome, text = printed(config, resume_from=4)
    assert outcome == straight and "\nGoing on after step 4" in f"\n{text}"
    assert rows_of(config) == rows
    jax.tree.map(np.testing.assert_array_equal, saved(config)[2], want)
    with pytest.raises(ValueError, match="^resume_from: --restart deletes"):
        printed(config, resume_from=4, restart=True)


def test_run_refuses_a_folder_that_another_one_has_and_gives_it_back(config):
    with Checkpoints(f"{config.out}/checkpoint") as other:
        other.lock()
        with pytest.raises(ValueError, match="^out: .* is in use by this process; cl"):
            printed(config)
        assert not (Path(config.out) / "log.jsonl").exists()
    wrong = changed(config, optimizer="sgd", learning_rate=1e38, steps=60, patience=0)
    with pytest.raises(FloatingPointError):
        printed(wrong)  # a failed run gives it back too
    printed(config, restart=True)


@pytest.mark.slow
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
    monkeypatch.setattr(_train, "_finish", killed)
    with pytest.raises(KeyboardInterrupt):
        printed(config, restart=True)
    assert not any(mark.exists() for mark in marks)
    completed = []
    monkeypatch.setattr(_train, "_finish", lambda run, console: completed.append(run))
    assert "Going on after step 6" in printed(config)[1]
    assert len(completed) == 1


@pytest.mark.slow
def test_run_stopped_after_its_last_step_is_completed_by_the_next_command(
    config, interrupt_after, monkeypatch
):
    completed = []
    monkeypatch.setattr(_train, "_finish", lambda run, console: completed.append(run))
    interrupt_after(6)
    printed(config)
    assert printed(config)[0].signal is None
    assert len(completed) == 2 and int(completed[1].state.counts.steps) == 6


def test_signal_that_comes_while_processes_ask_each_other_is_not_lost(monkeypatch):
    def slow(number):
        os.kill(os.getpid(), signal.SIGTERM)
        return number

    with _train.Interruption() as interruption:
        monkeypatch.setattr(_train, "largest", slow)
        assert not _train._told_to_stop(interruption)
        monkeypatch.undo()
        assert _train._told_to_stop(interruption)
    assert interruption.signal == signal.SIGTERM


def test_signal_that_was_ignored_before_is_still_ignored(request):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with _train.Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_signal_that_python_does_not_handle_is_left_as_it_is(monkeypatch):
    """Python knows no handler that a program in C has installed."""
    getsignal = signal.getsignal
    before = getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        signal, "getsignal", lambda n: None if n == signal.SIGTERM else getsignal(n)
    )
    with _train.Interruption():
        assert getsignal(signal.SIGTERM) is before
        assert getsignal(signal.SIGINT) is not signal.default_int_handler
    assert getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", ["log.jsonl", "loss.png"])
def test_run_names_out_when_a_folder_stands_where_a_file_goes(config, name):
    (Path(config.out) / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"^out: cannot write in .*{name}.*--out"):
        printed(config)


def test_run_names_out_when_the_disk_is_full(config, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(ValueError, match="^out: cannot write in .*No space left"):
        printed(config)


# A checkpoint may be replaced while it is read. It is then read again; but callbacks of
# the first read find its event loop closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_readers_and_a_second_run_leave_one_that_is_training_alone(config):
    words = [sys.executable, "-m", "scanrnn", "train", "--steps", "600"]
    for name in ("text", "out", "features", "layers", "batch", "window"):
        words += [f"--{name}", str(getattr(config, name))]
    words += ["--evaluate-every", "1", "--sample", "3"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as run:
        for line in run.stdout:
            if line.startswith("step     3"):
                break
        second = subprocess.run(words, capture_output=True, text=True)
        assert second.returncode == 1
        assert f"is in use by process {run.pid} on" in second.stderr
        for _ in range(10):
            load_model(config.out)
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 128 + signal.SIGINT, errors


@pytest.mark.slow
def test_command_stopped_by_ctrl_c_leaves_a_checkpoint_and_goes_on(config):
    words = [sys.executable, "-m", "scanrnn", "train", "--steps", "100000"]
    for name in ("text", "out", "features", "layers", "batch", "window"):
        words += [f"--{name}", str(getattr(config, name))]
    words += ["--evaluate-every", "20"]
    checkpoints = []
    for number, wanted in ((signal.SIGINT, "Training: "), (signal.SIGTERM, "Going on")):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline()]
        while "held out" not in lines[-1] or len(lines) < 3:
            lines.append(process.stdout.readline())
            assert process.poll() is None, lines
        process.send_signal(number)
        lines += process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == 128 + number
        assert any(line.startswith(wanted) for line in lines[:2])
        assert lines[-1].endswith("Run the same command again to go on.")
        checkpoints.append(Checkpoints(f"{config.out}/checkpoint").latest())
    assert 20 <= checkpoints[0] < checkpoints[1]
