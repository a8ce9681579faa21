"""`python -m scanrnn plan`: how a layer will run, its cost, and what would help."""

import argparse
from typing import Any

from rich.console import Console

from scanrnn import cells
from scanrnn._advise import advise
from scanrnn.machines import MACHINES

CELLS = ("elman", "lstm", "gru", "mgu", "ugrnn", "multiplicative_lstm", "indrnn")
CELLS += ("sru", "qrnn", "mingru", "minlstm", "lru", "slstm", "mlstm")


def add(commands: Any) -> None:
    """Adds the command.

    Args:
        commands: the sub-parsers of the command line.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan", help="print how a layer will run, what it costs and what would help"
    )
    parser.add_argument("--cell", default="lstm", choices=CELLS)
    parser.add_argument(
        "--norm", help="layer norm of the cell, such as ba2016 (default: none)"
    )
    parser.add_argument("--window", type=int, default=64, help="T, steps")
    parser.add_argument("--batch", type=int, default=32, help="B, sequences")
    parser.add_argument("--features", type=int, default=256, help="H, of the carry")
    parser.add_argument(
        "--in-features", type=int, help="D, of the input (default: as many)"
    )
    parser.add_argument("--dtype", default="float32", help="of operands of products")
    parser.add_argument(
        "--machine", choices=list(MACHINES), help="(default: the one that is there)"
    )
    parser.set_defaults(run=run)


def run(options: dict[str, Any], console: Console) -> int:
    """Prints the plan and the advice.

    Args:
        options: of the command line.
        console: to print to.

    Returns:
        The exit status.
    """
    given = {"norm": options["norm"]} if options["norm"] else {}
    try:
        cell = getattr(cells, options["cell"])(**given)
    except TypeError:
        raise ValueError(f"norm: the cell {options['cell']} has none") from None
    try:
        advice = advise(
            cell,
            steps=options["window"],
            batch=options["batch"],
            in_features=options["in_features"] or options["features"],
            hidden_features=options["features"],
            dtype=options["dtype"],
            machine=options["machine"],
        )
    except TypeError as error:
        raise ValueError(f"dtype: {error}") from None
    console.out(f"{advice.plan}\n\n{advice}", highlight=False)
    return 0
