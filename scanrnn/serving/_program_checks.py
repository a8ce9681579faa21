"""What an exported program must be: a function of arrays, with a name for each."""

import collections
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from flax import linen


def model(where: str, model: Any) -> None:
    """Raise TypeError for what is no function of arrays.

    Args:
        where: name of the public function, for messages.
        model: what it was given.
    """
    if isinstance(model, linen.Module):
        raise TypeError(
            f"{where}: model is a Linen module, which has no parameters; give a "
            "function such as lambda xs: module.apply(variables, xs), and inputs="
        )
    if isinstance(model, type):
        raise TypeError(
            f"{where}: model is the class {model.__name__}, want an object of it, with "
            "its weights"
        )
    if not callable(model):
        raise TypeError(
            f"{where}: model is of type {type(model).__name__}, want a layer of "
            "scanrnn.nnx or a function of arrays"
        )


def order(where: str, function: Callable, given: list[str]) -> None:
    """Raise ValueError if the inputs are the arguments, but in another order.

    Args:
        where: name of the public function, for messages.
        function: what takes the inputs, by position.
        given: the names of the inputs.
    """
    try:
        parameters = list(inspect.signature(function).parameters)[: len(given)]
    except ValueError:  # Python cannot tell what it takes
        return
    if given != parameters and sorted(given) == sorted(parameters):
        raise ValueError(
            f"{where}: inputs has the order {', '.join(given)}, but the function takes "
            f"{', '.join(parameters)}; inputs are given by position: use its order"
        )


def names(
    where: str, inputs: Iterable[str], outputs: tuple[str, ...], given: Any
) -> None:
    """Raise ValueError unless each input and output has a name of its own.

    Args:
        where: name of the public function, for messages.
        inputs: the names of the inputs.
        outputs: the names of the outputs.
        given: what the user gave as names of the outputs.
    """
    if isinstance(given, str) or not all(isinstance(name, str) for name in outputs):
        raise ValueError(
            f"{where}: outputs={given!r}, want a list of names, one for each output"
        )
    if not outputs:
        raise ValueError(
            f"{where}: the program has no output; return at least one array, and give "
            "outputs a name for each"
        )
    counts = collections.Counter((*inputs, *outputs))
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"{where}: two inputs or outputs have the name {twice[0]!r}; rename one in "
            "inputs= or outputs="
        )
