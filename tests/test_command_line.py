"""`python -m scanrnn`."""

import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import pytest

from scanrnn import __version__
from scanrnn.__main__ import _LOST, _config, _parser, main
from scanrnn.training import RECIPES, Checkpoints, Config

pytestmark = pytest.mark.usefixtures("in_32_bit")

TINY = "--features 8 --layers 1 --batch 2 --window 6 --steps 2 --sample 5".split()

HUGE = "99999999999999999999"


def test_command_line_trains_then_samples(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 20)
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "--text", str(text), *out, *TINY]) == 0
    capsys.readouterr()
    assert main(["sample", *out, "--prompt", "to be", "--length", "10"]) == 0
    assert len(capsys.readouterr().out.strip("\n")) == 15
    assert main(["sample", *out, "--prompt", "2 B"]) == 1
    output = capsys.readouterr()
    assert "error: text: '2B' is not in the vocabulary" in output.err
    assert output.out == ""  # refused before the prompt is printed
    assert main(["sample", *out, "--length", "-3"]) == 1
    assert "error: length: got -3, want at least 0" in capsys.readouterr().err
    assert main(["sample", *out, "--seed", HUGE]) == 1
    assert f"error: seed: got {HUGE}, want at most" in capsys.readouterr().err


def test_command_line_prints_a_plan_and_advice(capsys):
    words = ["plan", "--features", "64", "--norm", "ba2016", "--machine", "h100"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.startswith("Plan: 64 steps, 1 of 2 GEMMs")
    assert "Advice for float32 on h100: T=64, B=32, D=64, H=64" in output
    assert "Loop for values" not in output
    assert main([*words, "--long"]) == 0
    assert "Loop for values" in capsys.readouterr().out


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
        (["sample", "--out", "nowhere"], "error: out: 'nowhere' holds no run"),
        (["export", "--out", "nowhere"], "error: out: 'nowhere' holds no run"),
        (["export", "--out", ""], "error: out: '' holds no run"),
        (["plan", "--norm", "no"], "error: lstm: norm='no' is unknown"),
        (["plan", "--cell", "lru", "--norm", "ba2016"], "error: norm: the cell lru"),
        (["plan", "--dtype", "no"], "error: dtype: "),
        (
            ["plan", "--dtype", "float64"],
            "error: dtype: float64 is switched off in JAX; set",
        ),
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
