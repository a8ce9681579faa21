"""Which text and options a run in a folder may go on with."""

import dataclasses
import os

import pytest

from scanrnn.machines import MACHINES
from scanrnn.training import Config, _same_run, train
from scanrnn.training._run import open_run

pytestmark = pytest.mark.usefixtures("in_32_bit")
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 12


@pytest.fixture
def config(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    small = {"features": 8, "layers": 1, "batch": 2, "window": 6, "steps": 2}
    return Config(text=str(tmp_path / "text.txt"), out=str(tmp_path / "run"), **small)


def start(config, *without):
    """Leave a checkpoint, `without` some of its notes."""
    run = open_run(config)
    notes = {k: v for k, v in run.identity.items() if k not in without}
    with run.checkpoints as checkpoints:
        checkpoints.save(1, run.state, notes | {"batches": run.batches.state()})


def goes_on(config, **options):
    run = open_run(config, **options)
    run.checkpoints.close()
    return "config" in run.notes


def change_the_end(config):
    with open(config.text, "w", encoding="utf-8") as file:
        file.write(TEXT[:-20] + TEXT[-20:].replace("o", "e"))


def test_a_run_goes_on_only_with_its_held_out_text(config):
    start(config)
    assert goes_on(config)
    change_the_end(config)
    with pytest.raises(ValueError, match="^text: .* was started on another held-out"):
        open_run(config)


def test_an_older_run_without_a_checksum_of_its_held_out_text_goes_on(config):
    start(config, "held_out")
    assert goes_on(config)
    change_the_end(config)
    assert goes_on(config)


def test_an_older_run_without_an_option_goes_on_with_its_default(config):
    run = open_run(config)
    notes = run.identity | {"batches": run.batches.state()}
    del notes["config"]["clip"]
    with run.checkpoints as checkpoints:
        checkpoints.save(1, run.state, notes)
    assert goes_on(config)
    with pytest.raises(
        ValueError, match="^clip: got 2.0, but .* started with 1.0; use"
    ):
        open_run(dataclasses.replace(config, clip=2.0))


def test_the_same_text_by_another_path_is_the_same(config, monkeypatch):
    start(config)
    monkeypatch.chdir(os.path.dirname(config.text))
    for path in ("text.txt", "./text.txt"):
        assert goes_on(dataclasses.replace(config, text=path))
    with open("other.txt", "w", encoding="utf-8") as file:
        file.write(TEXT.upper())
    with pytest.raises(ValueError, match="^text: .* was started on another text"):
        open_run(dataclasses.replace(config, text="other.txt"))


@pytest.mark.parametrize("names", [("config",), ("vocabulary",), ("config", "text")])
def test_a_checkpoint_without_the_notes_of_a_run_is_of_another_program(config, names):
    start(config, *names)
    with pytest.raises(ValueError, match=f"^out: .* have no '{names[0]}', only"):
        open_run(config)
    assert not goes_on(config, restart=True)


@pytest.mark.parametrize("kind, later", [("unknown", "h100"), ("h100", "unknown")])
@pytest.mark.parametrize("precision", ["auto", "carry=bfloat16, compute=auto"])
def test_auto_is_what_the_run_was_started_with(
    config, monkeypatch, kind, later, precision
):
    config = dataclasses.replace(config, precision=precision)
    monkeypatch.setattr(_same_run, "machine_of", lambda: MACHINES[kind])
    start(config)
    monkeypatch.setattr(_same_run, "machine_of", lambda: MACHINES[later])
    chosen = {"unknown": "float32", "h100": "bfloat16"}
    for options in ({}, {"resume_from": 1}, {"restart": True}):
        run = open_run(config, **options)
        run.checkpoints.close()
        machine = later if "restart" in options else kind
        assert run.config.precision == precision.replace("auto", chosen[machine])
        assert ("config" in run.notes) is (machine == kind)


def test_another_precision_than_that_of_the_run_is_still_refused(config, monkeypatch):
    monkeypatch.setattr(_same_run, "machine_of", lambda: MACHINES["unknown"])
    start(dataclasses.replace(config, precision="float16"))
    for precision in ("auto", "float32"):
        with pytest.raises(ValueError, match="^precision: got 'float32', .* 'float16'"):
            open_run(dataclasses.replace(config, precision=precision))


def test_a_checkpoint_that_is_not_there_is_asked_for_by_resume_from(config):
    with pytest.raises(ValueError, match="^resume_from: .* no checkpoint in .*; leave"):
        open_run(config, resume_from=4)
    start(config)
    with pytest.raises(ValueError, match="^resume_from: .* of 4, but of 1; choose one"):
        open_run(config, resume_from=4)
    assert goes_on(config, resume_from=1)


def test_a_held_out_part_that_is_too_short_is_named(config):
    with open(config.text, "w", encoding="utf-8") as file:
        file.write(TEXT[:80])
    with pytest.raises(ValueError, match="^held_out: the held-out part .* has 8 token"):
        open_run(dataclasses.replace(config, window=8))


@pytest.mark.parametrize(
    ("text", "held_out", "part"),
    [(TEXT, 0.1, "part to train on"), (TEXT + "\n" + TEXT, 0.005, "held-out part")],
)
def test_a_text_without_sentences_says_where_they_end(config, text, held_out, part):
    with open(config.text, "w", encoding="utf-8") as file:
        file.write(text)
    options = {"tokens": "words", "batching": "sentences", "held_out": held_out}
    with pytest.raises(ValueError, match=f"^text: the {part} .* ends at an empty line"):
        open_run(dataclasses.replace(config, **options))


def test_a_foreign_log_is_the_only_cause_that_is_named(config):
    path = os.path.join(config.out, "log.jsonl")
    os.makedirs(os.path.join(config.out, "checkpoint"))
    with open(path, "w", encoding="utf-8") as file:
        file.write("a table of the user\n")
    with pytest.raises(ValueError, match="is no log of a run.*another folder") as error:
        train(config)
    assert "cannot write" not in str(error.value)
