"""The command line: `python -m scanrnn train | sample | export | plan`."""

import argparse
import io
import logging
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import scanrnn
from scanrnn import _commands, training
from scanrnn.training._complaints import without_late_complaints
from scanrnn.training._show import print_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The words of the command line, without the program's name. None
            reads them from `sys.argv`.

    Returns:
        The exit status: 0 if all went well, 1 after an error, or 128 plus the number of
        the signal that stopped the command.

    Raises:
        SystemExit: if the command line cannot be parsed, or asks for `--help` or
            `--version`.
        jax.errors.JaxRuntimeError: for an error of JAX's runtime other than out of
            memory.

    Example:
        >>> main(["sample", "--out", "nowhere", "--length", "0"])
        1
    """
    _print_anything()
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    if options.pop("command") is None:
        parser.print_help()
        return 0
    run = options.pop("run")
    console = Console(markup=False, highlight=False, soft_wrap=True)
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_news)
    try:
        return run(options, console)
    except BrokenPipeError:
        console.on_broken_pipe()  # as of `| head`: ends without a word
        return 1
    except (ValueError, FloatingPointError, ImportError, OSError) as error:
        return _fail(str(error))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            sizes = _sizes(options)
            return _fail(f"not enough memory for {sizes}; choose smaller sizes")
        raise
    except KeyboardInterrupt:
        console.print("stopped")
        return 130


def _print_anything() -> None:
    """Prints a code for a character that the encoding of the output does not have."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log record tells the user something new.

    Orbax logs its errors at length, and raises them too. If several of its tasks fail,
    asyncio logs all of them but the first. Only Orbax uses asyncio here.
    """
    of_orbax = record.name == "asyncio" or "orbax" in record.pathname
    return record.levelno < logging.ERROR or not of_orbax


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def _sizes(options: dict[str, Any]) -> str:
    """The options that decide how much memory a command takes, as flags."""
    names = [n for n in ("features", "layers", "batch", "window") if n in options]
    return " ".join(f"--{n} {options[n]}" for n in names) or "the model of this run"


_FIRST_STEPS = """\
what one can do:
  python -m scanrnn train                      train on text that comes with Python
  python -m scanrnn train --text my.txt --out runs/my
  python -m scanrnn sample --out runs/my --prompt "Once"
  python -m scanrnn export --out runs/my --format onnx
  python -m scanrnn plan --cell gru --features 512

python -m scanrnn COMMAND --help explains the options of a command.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scanrnn",
        description="Recurrent networks in JAX: train, write, export, plan.",
        epilog=_FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=scanrnn.__version__)
    commands = parser.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", prog="python -m scanrnn"
    )
    _add_train(commands)
    _add_sample(commands)
    _commands.export.add(commands)
    _commands.plan.add(commands)
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train", help="train a language model, or continue a stopped run"
    )
    _add_config(train)
    train.add_argument(
        "--restart", action="store_true", help="delete the older run in --out first"
    )
    train.add_argument(
        "--resume-from",
        type=int,
        metavar="STEP",
        help="continue from the checkpoint of this step, and delete all later ones: "
        "for when the newest cannot be read (default: the newest)",
    )
    several = train.add_argument_group(
        "several processes", "start each with the same options and its own --process-id"
    )
    several.add_argument("--coordinator", help="address and port of process 0")
    several.add_argument("--num-processes", type=int, help="number of processes")
    several.add_argument("--process-id", type=int, help="number of this one, from 0")
    several.add_argument(
        "--distributed",
        action="store_true",
        help="join the processes that the cluster (Slurm, a TPU pod) started",
    )
    train.set_defaults(run=_train)


def _add_sample(commands: Any) -> None:
    sample = commands.add_parser("sample", help="write text with a trained model")
    default = "(default: %(default)s)"
    sample.add_argument(
        "--out", default="runs/demo", help=f"folder of the run {default}"
    )
    sample.add_argument(
        "--prompt", default="", help="text to continue (default: a new paragraph)"
    )
    sample.add_argument(
        "--length", type=int, default=800, help=f"tokens to write {default}"
    )
    sample.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        help="divides the logits; below 1 is more cautious, and 0 takes the likeliest "
        f"token {default}",
    )
    sample.add_argument("--seed", type=int, default=0, help=f"random seed {default}")
    sample.set_defaults(run=_sample)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe",
        choices=list(training.RECIPES),
        default="demo",
        help="set of defaults for all options (default: demo)",
    )
    parser.add_argument(
        "--config", help="TOML file of options; those on the command line override it"
    )
    training.Config.add_options(parser)


def _config(options: dict[str, Any]) -> training.Config:
    """The config: the recipe's options, then the file's, then the command line's."""
    recipe, path = training.RECIPES[options.pop("recipe")], options.pop("config")
    file: dict[str, Any] = {}
    if path is not None:
        try:
            file = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"config: cannot read {path!r} as TOML: {error}; check path and syntax"
            ) from None
    try:
        config = training.Config.from_mapping(recipe | file | options)
    except TypeError as error:  # only a file can have values of another type
        raise ValueError(f"config: {path}: {error}") from None
    if not (Path(config.out) / "checkpoint").exists():  # else a run goes on as it was
        defaults = vars(training.Config())
        # A file may list all options, also those that have their defaults.
        changed = {name: v for name, v in file.items() if v != defaults[name]}
        _commands.given.check(changed, defaults | recipe | file, vars(config))
        _commands.given.check(options, vars(config))
    return config


def _train(options: dict[str, Any], console: Console) -> int:
    start = {name: options.pop(name) for name in ("restart", "resume_from")}
    names = ("coordinator", "num_processes", "process_id")
    place = {name: options.pop(name) for name in names}
    if options.pop("distributed") or any(v is not None for v in place.values()):
        training.join_processes(**place)
        console.quiet = jax.process_index() > 0
    config = _config(options)
    scanrnn.tune_allocator()
    try:
        with without_late_complaints():
            outcome = training.train(config, **start, console=console)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # Some of JAX's libraries raise a ValueError for an error of the network.
        if jax.process_count() == 1 or not _LOST.search(str(error)):
            raise
        _fail(
            f"process {jax.process_index()} lost another one ({_first_line(error)}); "
            f"the last checkpoint is in {config.out}: start all of them again to go on"
        )
        # At a normal exit the runtime waits for the lost process, and then aborts.
        os._exit(1)
    return 0 if outcome.signal is None else 128 + outcome.signal


# Errors of gloo, NCCL and JAX's coordination service when a process is gone. Their text
# starts with a code such as UNAVAILABLE; a path of the user with such a word has none.
_LOST = re.compile(
    r"\b[A-Z_]{5,}: .*(?i:gloo|nccl|coordination|heartbeat|barrier|connection|peer)",
    re.DOTALL,
)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _sample(options: dict[str, Any], console: Console) -> int:
    model, vocabulary = training.load_model(options["out"])
    # The config checks that the seed is valid.
    config = training.Config.from_mapping({"seed": options["seed"]})
    pieces = training.generate(
        model,
        vocabulary,
        options["length"],
        prompt=options["prompt"],
        temperature=options["temperature"],
        key=jax.random.key(config.seed),
    )
    # Print the prompt only now: `generate` has refused a prompt that it cannot read.
    print_text(console, options["prompt"])
    for piece in pieces:
        print_text(console, piece)
    console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
