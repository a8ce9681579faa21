"""Options of a training run."""

import argparse
import dataclasses

import pytest

from scanrnn.training import Config

REFUSED = [
    ("features", 0, ValueError, "features: got 0, want at least 1"),
    ("batch", -1, ValueError, "batch: got -1, want at least 1"),
    ("steps", 2.5, TypeError, "steps: got 2.5 of type float, want int"),
    ("out", None, TypeError, "out: got None of type NoneType, want str"),
    ("learning_rate", float("nan"), ValueError, "learning_rate: got nan, want at"),
    ("temperature", 1e-4, ValueError, "temperature: got 0.0001, want at least 0.001"),
    ("held_out", 1.0, ValueError, "held_out: got 1.0, want a share between 0 and 1"),
    ("seed", 2**32, ValueError, "seed: got 4294967296, want at most 4294967295"),
    (
        "precision",
        "fp8",
        ValueError,
        "precision: got 'fp8', want auto, float16, bfloat16, float32 or float64",
    ),
    (
        "precision",
        "float8_e4m3fn",
        ValueError,
        "precision: got float8_e4m3fn, want auto",
    ),
    ("precision", "carry=auto", ValueError, "carry: got 'auto', want float16, "),
    ("out", "", ValueError, "out: got '', want a folder; '.' is the current one"),
    ("keep", 2.0, ValueError, "keep: got 2.0, want at most 1"),
    ("uniform", float("inf"), ValueError, "uniform: got inf, want at most 1e+38"),
    ("clip", 0.0, ValueError, "clip: got 0.0, want more than 0"),
    ("tokens", "bytes", ValueError, "tokens: got 'bytes', want one of characters, wor"),
    ("batching", "sentences", ValueError, "batching: sentences need words; add"),
    ("health", 1, TypeError, "health: got 1 of type int, want bool"),
]


@pytest.mark.parametrize("name, value, error, message", REFUSED, ids=lambda x: str(x))
def test_config_refuses_a_value_that_cannot_work(name, value, error, message):
    with pytest.raises(error) as caught:
        Config(**{name: value})
    assert str(caught.value).startswith(message)


def test_config_names_an_unknown_option():
    with pytest.raises(ValueError, match="unknown option 'step'; the options are out"):
        Config.from_mapping({"step": 3})


def test_config_goes_through_the_command_line_and_back():
    parser = argparse.ArgumentParser()
    Config.add_options(parser)
    defaults = Config()
    assert Config.from_mapping(vars(parser.parse_args([]))) == defaults
    changed = Config(out="x", batch=3, learning_rate=0.5, residual=False, health=True)
    words = []
    for name, value in dataclasses.asdict(changed).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    assert Config.from_mapping(vars(parser.parse_args(words))) == changed


@pytest.mark.parametrize(
    "field",
    [f for f in dataclasses.fields(Config) if f.type in (int, float)],
    ids=lambda f: f.name,
)
def test_config_refuses_an_absurd_number(field):
    absurd = 10**20 if field.type is int else 1e39  # beyond float32
    if field.name == "clip":  # such a clip is allowed and never clips
        assert getattr(Config(**{field.name: absurd}), field.name) == absurd
        return
    with pytest.raises(ValueError, match=f"{field.name}: got 1.*, want "):
        Config(**{field.name: absurd})


@pytest.mark.usefixtures("in_32_bit")
def test_config_refuses_float64_that_jax_would_not_give():
    with pytest.raises(ValueError, match="float64 is switched off in JAX; set JAX_"):
        Config(precision="params=float64")
