"""The command line: `python -m scanrnn train | sample | export | plan`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from rich.console import Console

import scanrnn
from scanrnn import _commands, training


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The command line without the program; None for that of the process.

    Returns:
        The exit status: 0, 1 after an error, 128 plus the signal that stopped it.

    Example:
        >>> main(["sample", "--out", "nowhere", "--length", "0"])
        1
    """
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    del options["command"]
    run = options.pop("run")
    console = Console(markup=False, highlight=False, soft_wrap=True)
    try:
        return run(options, console)
    except (ValueError, FloatingPointError, ImportError, OSError) as error:
        return _fail(str(error))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return _fail(f"not enough memory for {_sizes(options)}")
        raise
    except KeyboardInterrupt:
        console.print("stopped")
        return 130


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def _sizes(options: dict[str, Any]) -> str:
    """What decides how much memory a command takes, as flags."""
    names = [n for n in ("features", "layers", "batch", "window") if n in options]
    return " ".join(f"--{n} {options[n]}" for n in names) or "the model of this run"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scanrnn", description=__doc__)
    parser.add_argument("--version", action="version", version=scanrnn.__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    train = commands.add_parser(
        "train", help="train a character language model, or go on with a stopped run"
    )
    training.Config.add_options(train)
    train.add_argument(
        "--restart", action="store_true", help="delete the older run in --out first"
    )
    train.set_defaults(run=_train)

    sample = commands.add_parser("sample", help="write text with a trained model")
    sample.add_argument("--out", default="runs/demo", help="folder of the run")
    sample.add_argument("--prompt", default="", help="text to go on from")
    sample.add_argument("--length", type=int, default=800, help="characters to write")
    sample.add_argument("--temperature", type=float, default=0.7)
    sample.add_argument("--seed", type=int, default=0)
    sample.set_defaults(run=_sample)

    _commands.export.add(commands)
    _commands.plan.add(commands)
    return parser


def _train(options: dict[str, Any], console: Console) -> int:
    restart = options.pop("restart")
    config = training.Config.from_mapping(options)
    scanrnn.tune_allocator()
    outcome = training.train(config, restart=restart, console=console)
    return 0 if outcome.signal is None else 128 + outcome.signal


def _sample(options: dict[str, Any], console: Console) -> int:
    folder = Path(options["out"]) / "checkpoint"
    if not folder.is_dir():
        raise ValueError(f"out: {options['out']!r} holds no run; train one first")
    checkpoints = training.Checkpoints(folder)
    notes = checkpoints.notes()
    # With the seed of the sample, which the config checks; nothing else here needs one.
    config = training.Config.from_mapping(notes["config"] | {"seed": options["seed"]})
    vocabulary = training.Vocabulary(notes["symbols"])
    model = training.make_model(config, len(vocabulary))
    state = checkpoints.state(like=training.init_state(config, model))
    nnx.update(model, state.params)
    pieces = training.generate(
        model,
        vocabulary,
        options["length"],
        prompt=options["prompt"],
        temperature=options["temperature"],
        key=jax.random.key(config.seed),
    )
    # Not before: a prompt that cannot be read is refused by now.
    console.out(options["prompt"], end="", highlight=False)
    for piece in pieces:
        console.out(piece, end="", highlight=False)
    console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
