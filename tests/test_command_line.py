"""`python -m scanrnn`."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from scanrnn import __version__, _commands, training
from scanrnn.__main__ import _LOST, _config, _parser, main
from scanrnn.training import RECIPES, Checkpoints, Config, Vocabulary

pytestmark = pytest.mark.usefixtures("in_32_bit")

TINY = "--features 8 --layers 1 --batch 2 --window 6 --steps 2 --sample 5".split()

HUGE = "99999999999999999999"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Without the `runs/demo` of `make demo`, which a command would go on with."""
    monkeypatch.chdir(tmp_path)


def test_command_line_trains_then_samples(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 20)
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "--text", str(text), *out, *TINY]) == 0
    capsys.readouterr()
    assert main(["sample", *out, "--prompt", "to be", "--length", "10"]) == 0
    assert len(capsys.readouterr().out.strip("\n")) == 15
    greedy = [*out, "--prompt", "to be", "--length", "9", "--temperature", "0"]
    assert main(["sample", *greedy, "--seed", "1"]) == 0
    written = capsys.readouterr().out
    assert main(["sample", *greedy, "--seed", "2"]) == 0
    assert capsys.readouterr().out == written  # the likeliest, whatever the seed
    assert main(["sample", *out, "--temperature", "-1"]) == 1
    assert "error: temperature: got -1.0, want at" in capsys.readouterr().err
    assert main(["sample", *out, "--prompt", "2 B"]) == 1
    output = capsys.readouterr()
    assert "error: text: '2B' is not in the vocabulary" in output.err
    assert output.out == ""  # refused before the prompt is printed
    assert main(["sample", *out, "--length", "-3"]) == 1
    assert "error: length: got -3, want at least 0" in capsys.readouterr().err
    assert main(["sample", *out, "--seed", HUGE]) == 1
    assert f"error: seed: got {HUGE}, want at most" in capsys.readouterr().err


def test_command_line_prints_a_plan_and_advice(capsys):
    words = ["plan", "--features", "64", "--norm", "ba2016", "--machine", "H100"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.startswith("Plan: 64 steps, 1 of 2 GEMMs")
    assert "Advice for float32 on h100: T=64, B=32, D=64, H=64" in output
    assert "Loop for values" in output and "Before the loop" not in output
    assert main([*words, "--long"]) == 0
    assert "Before the loop" in capsys.readouterr().out
    words = ["plan", "--features", "64", "--cell", "rwkv7"]
    assert main(words) == main([*words, "--norm", "true"]) == 0
    assert "Plan: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["train", "--precision", "fp8"], "error: precision: got 'fp8', want auto, fl"),
        (["train", "--out", ""], "error: out: got '', want a folder; '.' is the"),
        (["train", "--config", ""], "error: config: cannot read '' as TOML"),
        (["train", "--config", "nowhere"], "error: config: cannot read 'nowhere' as"),
        (["train", "--num-processes", "2"], "error: coordinator: got None; give coor"),
        (["train", "--text", "nowhere.txt"], "error: text: cannot read 'nowhere.txt'"),
        (["train", "--out", __file__], f"error: out: cannot write in '{__file__}'"),
        (["train", "--seed", HUGE], f"error: seed: got {HUGE}, want at most"),
        (
            ["train", "--vocabulary", "500"],
            "error: vocabulary: got 500, which has no effect: all characters are kept",
        ),
        (
            ["train", "--decay", "0.5"],
            "error: decay: got 0.5, which has no effect: adamw has a schedule of its",
        ),
        (
            ["train", "--decay-after", "9"],
            "error: decay_after: got 9, which has no effect: adamw has a schedule of",
        ),
        (
            ["train", "--recipe", "ptb-small", "--minutes", "5"],
            "error: minutes: got 5.0, which has no effect: the run has epochs=13, fr",
        ),
        (
            ["train", "--steps", "9", "--minutes", "5"],
            "error: minutes: got 5.0, which has no effect: the run has steps=9, from",
        ),
        (["sample", "--out", "nowhere"], "error: out: 'nowhere' holds no run"),
        (["export", "--out", "nowhere"], "error: out: 'nowhere' holds no run"),
        (["export", "--out", ""], "error: out: '' holds no run"),
        (["plan", "--norm", "no"], "error: lstm: norm='no' is unknown"),
        (["plan", "--cell", "lru", "--norm", "ba2016"], "error: norm: the cell lru"),
        (
            ["plan", "--cell", "rwkv7", "--norm", "ba2016"],
            "error: norm: got 'ba2016', but the cell rwkv7 has one norm only; write ",
        ),
        (["plan", "--dtype", "no"], "error: dtype: "),
        (
            ["plan", "--dtype", "float64"],
            "error: dtype: float64 is switched off in JAX; set",
        ),
        (["plan", "--machine", "h200"], "error: machine 'h200' is unknown; most like"),
        (["plan", "--features", "0"], "error: --features: got 0, want at least 1"),
        (["plan", "--in-features", "0"], "error: --in-features: got 0, want at least"),
        (["plan", "--features", "99999999999"], "error: advise: T=64, B=32, D=9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_line_reports_an_error_without_a_traceback(words, message, capsys):
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith(message) and error.count("\n") == 1


@pytest.mark.parametrize(
    "text, lost",
    [
        ("UNKNOWN: Gloo all-reduce failed: [tcp] Connection closed by peer", True),
        ("DEADLINE_EXCEEDED: Barrier timed out.\nIts id is 7", True),
        ("UNAVAILABLE: failed to connect:\nrecv from the Coordination service", True),
        ("out: cannot write in 'a' (ABORTED: heartbeat timeout); make room", True),
        ("INTERNAL: out of registers", False),
        ("text: cannot read '/data/peer_reviews.txt': No such file", False),
        ("out: '/home/speer/run' is in use by process 3; wait for it", False),
        ("out: cannot write in 'IGLOO' (disk full: no room)", False),
    ],
)
def test_a_lost_process_is_told_from_a_path_with_such_a_word(text, lost):
    assert bool(_LOST.search(text)) is lost


def test_commands_refuse_a_checkpoint_of_another_program(tmp_path, capsys):
    with Checkpoints(tmp_path / "checkpoint") as checkpoints:
        checkpoints.save(3, {"w": jnp.ones(1)}, {"batches": {"epoch": 0, "batch": 3}})
    out = ["--out", str(tmp_path)]
    for words in (["sample"], ["export"], ["train", *TINY]):
        assert main([*words, *out]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: out: the checkpoint in ")
        assert "was not saved by `train`" in error and "with `resume`" in error
        assert error.count("\n") == 1


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Write a model, whose vocabulary is that of a "run", to a file of a name."""
    monkeypatch.setattr(training, "load_model", lambda run: (None, Vocabulary(run)))
    monkeypatch.setattr(
        _commands.export, "write", lambda model, kind, path: path.write_text(kind)
    )

    def export(run, name, kind="onnx"):
        words = ["export", "--out", run, "--to", str(tmp_path / name), "--format", kind]
        return main(words)

    return export


def test_exports_into_one_folder_have_vocabularies_of_their_own(exported, tmp_path):
    assert exported("abc", "one.onnx") == exported("xyz", "two.onnx") == 0
    assert exported("abc", "one.stablehlo", "stablehlo") == 0
    texts = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    assert texts == {
        "one.vocabulary.json": '["a", "b", "c"]',
        "two.vocabulary.json": '["x", "y", "z"]',
    }


def test_export_leaves_the_vocabulary_of_another_model(exported, tmp_path, capsys):
    assert exported("abc", "lm.onnx") == 0
    assert exported("xyz", "lm.stablehlo", "stablehlo") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: to: ")
    assert "lm.vocabulary.json' has another vocabulary, of lm.onnx; choose" in error
    assert not (tmp_path / "lm.stablehlo").exists()
    assert (tmp_path / "lm.vocabulary.json").read_text() == '["a", "b", "c"]'
    assert exported("xyz", "lm.onnx") == 0  # the same file, written again
    assert (tmp_path / "lm.vocabulary.json").read_text() == '["x", "y", "z"]'
    (tmp_path / "lm.onnx").unlink()
    assert exported("abc", "lm.onnx") == 1
    assert "of another model; choose" in capsys.readouterr().err


def test_export_that_fails_leaves_model_and_vocabulary_as_they_were(
    exported, tmp_path, monkeypatch
):
    assert exported("abc", "lm.onnx") == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def write_text(path, *content, **options):
        raise OSError("disk full")

    def write(model, kind, path):
        path.write_bytes(b"new")

    monkeypatch.setattr(_commands.export, "write", write)
    monkeypatch.setattr(Path, "write_text", write_text)
    assert exported("xyz", "lm.onnx") == 1
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_command_line_alone_shows_what_one_can_do(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("train", "sample", "export", "plan"):
        assert f"python -m scanrnn {command}" in text


def test_command_line_tells_its_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"{__version__}\n"


def test_options_come_from_recipe_then_file_then_words(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("features = 7\nkeep = 0.5\nresidual = true\n")
    words = ["train", "--recipe", "ptb-large", "--config", str(path), "--keep", "0.25"]
    options = vars(_parser().parse_args(words))
    config = _config({n: options[n] for n in ("recipe", "config", "keep")})
    assert (config.features, config.keep, config.residual) == (7, 0.25, True)
    assert (config.window, config.clip, config.loss) == (35, 10.0, "sum")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--tokens", "characters"], "tokens: got 'characters', which has no effect"),
        (["--held-out", "0.3"], "held_out: got 0.3, which has no effect: a folder in"),
    ],
)
def test_options_that_a_ptb_folder_leaves_without_effect_are_refused(
    tmp_path, capsys, words, message
):
    for name in ("ptb.train.txt", "ptb.valid.txt"):
        (tmp_path / name).write_text("the cat sat \n" * 9)
    assert main(["train", "--text", str(tmp_path), *words]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


def parsed(*words):
    options = vars(_parser().parse_args(["train", *words]))
    known = {"recipe", "config", *(field.name for field in dataclasses.fields(Config))}
    return _config({name: v for name, v in options.items() if name in known})


def test_options_are_refused_only_where_they_were_given(tmp_path):
    assert parsed("--recipe", "ptb-medium", "--optimizer", "adamw").decay_after == 6
    assert parsed("--recipe", "ptb-small", "--tokens", "characters").vocabulary
    assert parsed("--text", str(tmp_path), "--vocabulary", "9").vocabulary == 9
    timed = parsed("--recipe", "ptb-small", "--minutes", "5", "--epochs", "0")
    assert timed.minutes == 5
    path = tmp_path / "run.toml"
    path.write_text("minutes = 5.0\ndecay = 0.5\n")
    assert parsed("--config", str(path)).minutes == 5
    assert parsed("--config", str(path), "--steps", "9").steps == 9
    path.write_text("minutes = 5.0\nsteps = 9\n")
    with pytest.raises(ValueError, match="minutes: got 5.0, which has no effect"):
        parsed("--config", str(path))


def test_value_of_another_type_in_a_config_is_one_line(tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text('features = "x"')
    assert main(["train", "--config", str(path)]) == 1
    assert (
        "bad.toml: features: got 'x' of type str, want int" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_a_config(name):
    assert Config.from_mapping(RECIPES[name]).layers == 2


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Config):
        assert "--" + field.name.replace("_", "-") in text
        assert field.metadata["help"] in text


@pytest.mark.parametrize("command", ["train", "sample", "export", "plan"])
def test_help_tells_every_default(command):
    commands = next(a for a in _parser()._actions if a.dest == "command")
    for action in commands.choices[command]._actions:
        optional = action.default is None and action.metavar is None
        if action.nargs != 0 and not (command == "train" and optional):
            assert "(default: " in action.help, action.dest


@pytest.mark.slow
def test_full_disk_is_told_in_one_line(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 20)
    words = [*TINY, "--features", "128", "--text", str(text), "--out", str(tmp_path)]
    # The limit of a file is 200,000 bytes, and an array of the state has more.
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (100_000,))
from scanrnn.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "train", *words]
    env = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0"}  # its files are large too
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert done.stderr.startswith("error: out: cannot write in ")
    assert done.stderr.count("\n") == 1 and len(done.stderr) < 1000
