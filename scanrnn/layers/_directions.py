"""Two layers over one sequence, forward and backward."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from scanrnn.layers._checks import is_recurrent
from scanrnn.layers._sequence import side_by_side


class Directions(Protocol):
    """The attributes that `joined` needs of a module of two layers."""

    forward_rnn: Any
    backward_rnn: Any
    merge_fn: Callable[[jax.Array, jax.Array], jax.Array] | None


def joined(
    module: Directions,
    inputs: jax.Array,
    initial_carry: Any,
    return_carry: bool,
    time_major: bool,
    arguments: dict[str, Any],
    own: Sequence[dict[str, Any]] = ({}, {}),
) -> Any:
    """Run the two layers of a module, and merge their outputs.

    Args:
        module: the module that has the layers.
        inputs: the inputs of both layers.
        initial_carry: the pair of first carries (forward, backward), or None.
        return_carry: whether to return the pair of last carries too.
        time_major: whether time is the first axis of the inputs.
        arguments: all other arguments of both calls.
        own: arguments of only one call: a dict for each layer.

    Returns:
        The merged outputs; with carries the pair (carries, outputs), where carries is
        the pair (forward, backward).

    Raises:
        TypeError: if `initial_carry` is not a pair, one of the two is no layer, or
            `merge_fn` is no function.
    """
    check_halves(module)
    if initial_carry is None:
        initial_carry = None, None
    if not isinstance(initial_carry, tuple | list) or len(initial_carry) != 2:
        raise TypeError(
            "Bidirectional: initial_carry must be a pair, (forward, backward), got "
            f"{type(initial_carry).__name__}"
        )
    carries = return_carry or bool(arguments.get("return_all_carries"))
    arguments = {**arguments, "return_carry": True, "time_major": time_major}
    forward, backward = (
        rnn(
            inputs,
            initial_carry=initial_carry[i],
            reverse=bool(i),
            keep_order=True,
            **arguments,
            **own[i],
        )
        for i, rnn in enumerate((module.forward_rnn, module.backward_rnn))
    )
    merge = module.merge_fn or side_by_side
    outputs = jax.tree.map(merge, forward[1], backward[1])
    return ((forward[0], backward[0]), outputs) if carries else outputs


def check_halves(module: Directions) -> None:
    """Raise TypeError unless both are layers, and `merge_fn` is a function or None."""
    if module.merge_fn is not None and not callable(module.merge_fn):
        raise TypeError(
            "Bidirectional: merge_fn must be a function of two arrays, such as "
            f"jnp.add, or None; got {module.merge_fn!r}"
        )
    for name in ("forward_rnn", "backward_rnn"):
        rnn = getattr(module, name)
        if is_recurrent(rnn, object):
            raise TypeError(
                f"Bidirectional: {name} is a cell, {type(rnn).__name__.lstrip('_')}; "
                "want a layer such as RNN(cell, ...)"
            )
        if not callable(rnn):
            raise TypeError(
                f"Bidirectional: {name} is {rnn!r}, want a layer such as RNN(cell, "
                "...); every layer also has bidirectional=True"
            )
