"""`python -m scanrnn plan`: how a layer will run, its cost, and what would help."""

import argparse
import inspect
from typing import Any

from rich.console import Console

from scanrnn import cells
from scanrnn._advise import advise
from scanrnn.machines import MACHINES

CELLS = ("elman", "lstm", "gru", "mgu", "ugrnn", "multiplicative_lstm", "indrnn", "rhn")
CELLS += ("sru", "qrnn", "mingru", "minlstm", "lru", "rglru", "slstm", "mlstm")
CELLS += ("gla", "deltanet", "gated_deltanet", "rwkv7", "mamba2")


def add(commands: Any) -> None:
    """Adds the command `plan` to the command line.

    Args:
        commands: The sub-parsers of the command line.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan", help="print how a layer will run, what it costs and what would help"
    )
    default = "(default: %(default)s)"
    parser.add_argument(
        "--cell", default="lstm", choices=CELLS, help=f"cell of the layer {default}"
    )
    parser.add_argument(
        "--norm",
        help="layer norm of the cell, such as ba2016; true if there is one only "
        "(default: none)",
    )
    for name, number, what in (
        ("--window", 64, "T, the time steps"),
        ("--batch", 32, "B, the batch size"),
        ("--features", 256, "H, the features of the carry"),
    ):
        parser.add_argument(name, type=int, default=number, help=f"{what} {default}")
    parser.add_argument(
        "--in-features", type=int, help="D, input features (default: H)"
    )
    parser.add_argument(
        "--dtype", default="float32", help=f"dtype of matrix products {default}"
    )
    parser.add_argument(
        "--machine",
        help=f"machine to plan for, of {', '.join(MACHINES)} (default: this one)",
    )
    parser.add_argument(
        "--long", action="store_true", help="print every decision of the plan"
    )
    parser.set_defaults(run=run)


def _cell(name, norm):
    """The cell; raise ValueError if it does not have this norm."""
    factory = getattr(cells, name)
    if norm is None:
        return factory()
    known = inspect.signature(factory).parameters
    if "options" in known:  # those of `GateOptions`
        return factory(norm=norm)
    if "norm" not in known:
        raise ValueError(
            f"norm: the cell {name} has none; leave --norm out, or choose another "
            "--cell"
        )
    if norm != "true":
        raise ValueError(
            f"norm: got {norm!r}, but the cell {name} has one norm only; write --norm "
            "true, or leave it out"
        )
    return factory(norm=True)


def run(options: dict[str, Any], console: Console) -> int:
    """Prints the plan and the advice.

    Args:
        options: The options of the command line, by name.
        console: Where to print.

    Returns:
        The exit status.

    Raises:
        ValueError: If the cell has no layer norm but `norm` is given, or another option
            is not valid.
    """
    for name in ("window", "batch", "features", "in_features"):
        if options[name] is not None and options[name] < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag}: got {options[name]}, want at least 1")
    inputs = options["in_features"]
    cell = _cell(options["cell"], options["norm"])
    try:
        advice = advise(
            cell,
            steps=options["window"],
            batch=options["batch"],
            in_features=options["features"] if inputs is None else inputs,
            hidden_features=options["features"],
            dtype=options["dtype"],
            machine=options["machine"],
        )
    except TypeError as error:
        raise ValueError(f"dtype: {str(error).removeprefix('dtype: ')}") from None
    plan = advice.plan.describe(long=options["long"])
    console.out(f"{plan}\n\n{advice}", highlight=False)
    return 0
