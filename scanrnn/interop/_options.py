"""Options of other libraries' layers, which the weights do not contain.

A layer object must be of a class that we know, and its options must fit our cell. For
options that change equations, a table has the values that fit. Neutral options may have
any value. Every other option, also one that a newer version adds, must be the default.
"""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from scanrnn.interop import _arrays

# The functions in our equations. Libraries have several versions of each, so we
# recognise a function by its values.
_FUNCTIONS = {
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}
_POINTS = np.concatenate([np.linspace(-8, 8, 65), [-50, 50]]).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Library:
    """The layers of a library that we can convert.

    Attributes:
        package: the package of their classes.
        classes: for each name of a class, the values that its options may have.
        neutral: options that change no equation, or that the arrays show.
        bare: what to give instead to convert only the weights, for messages.
    """

    package: str
    classes: Mapping[str, dict[str, tuple]]
    neutral: frozenset[str]
    bare: str

    def read(self, where: str, layer: Any, **instead: Any) -> dict[str, Any]:
        """Check a layer; return its options in the table, with functions by name.

        Args:
            where: name of the public function, for messages.
            layer: a layer, or a cell.
            **instead: values that options of this layer must have instead.

        Raises:
            ValueError: if we do not have its class or the value of an option.
        """
        kind = type(layer)
        package = kind.__module__.partition(".")[0]
        if package != self.package or kind.__name__ not in self.classes:
            raise ValueError(
                f"{where}: got a {kind.__module__}.{kind.__qualname__}, want one of "
                f"{self.package}'s {', '.join(self.classes)} itself, whose equations "
                f"are known; for its weights alone give {self.bare}"
            )
        table = self.classes[kind.__name__]
        must = table | {name: (value,) for name, value in instead.items()}
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            if name in self.neutral or not hasattr(layer, name):
                continue
            value = plain(getattr(layer, name))
            accepted = must.get(name, (plain(parameter.default),))
            if not any(value is one or value == one for one in accepted):
                wanted = " or ".join(repr(_shown(one)) for one in accepted)
                raise ValueError(
                    f"{where}: {kind.__name__} has {name}={_shown(value)!r}, which "
                    f"changes what it computes; want {wanted}. For its weights alone "
                    f"give {self.bare}"
                )
        return {name: plain(getattr(layer, name)) for name in table}


def plain(value: Any) -> Any:
    """The name of a function in our equations; any other value as it is."""
    if callable(value):
        for name, function in _FUNCTIONS.items():
            if _alike(value, function):
                return name
    return value


def _alike(function, ours):
    try:
        with jax.ensure_compile_time_eval():  # works inside a trace too
            got = np.asarray(_arrays.array(function(_POINTS), "a function"))
    except Exception:  # it takes other arguments and may raise any error
        return False
    wanted = ours(_POINTS)
    return got.shape == wanted.shape and np.allclose(got, wanted, 1e-5, 1e-6)


def _shown(value):
    return getattr(value, "__name__", value)


def activation(
    where: str,
    kind: str,
    given: str | None,
    read: Iterable[str],
    default: str | None = None,
    argument: str = "activation",
) -> str:
    """The kind of the cell, which includes the activation of an "elman".

    Args:
        where: name of the public function, for messages.
        kind: "elman", or a kind with only one activation.
        given: the activation from the user, or None.
        read: the activations that were read from objects.
        default: the activation of an "elman" if there is no other; None for an error.
        argument: the name of the argument `given` of that function, for messages.

    Raises:
        ValueError: if the cell does not have the activation, or if there are several.
    """
    known = ("tanh", "relu") if kind == "elman" else ("tanh",)
    said = {given, *read} - {None} or {"tanh" if kind != "elman" else default}
    if len(said) != 1 or not said <= set(known):
        wanted = " or ".join(map(repr, known))
        if said == {None}:
            raise ValueError(
                f"{where}: weights do not contain the activation of an {kind!r} cell; "
                f"give {argument}={wanted}"
            )
        raise ValueError(
            f"{where}: the cells are of kind {kind!r} and have the activation "
            f"{' and '.join(sorted(map(repr, said)))}, want one for all, {wanted}"
        )
    return "elman-relu" if said == {"relu"} else kind


_FLAX = {"gate_fn": ("sigmoid",), "activation_fn": ("tanh",)}
_SIMPLE = {"activation_fn": ("tanh", "relu")}
_ONES = (None, 1, (1,), (1, 1), (1, 1, 1))
# Sizes, initializers, dtypes, and the form of the arrays of a call.
_FLAX_NEUTRAL = {
    *("features", "in_features", "out_features", "hidden_features", "kernel_size"),
    *("kernel_init", "recurrent_kernel_init", "bias_init"),
    *("kernel_metadata", "recurrent_kernel_metadata", "bias_metadata"),
    *("forget_bias_init", "activation_bias_init"),
    *("dtype", "param_dtype", "precision", "preferred_element_type", "use_bias"),
    *("cell", "forward_rnn", "backward_rnn", "keep_rngs", "rngs", "parent", "name"),
    *("time_major", "return_carry", "unroll", "broadcast_rngs", "state_axes"),
    *("variable_axes", "variable_broadcast", "variable_carry", "split_rngs"),
}
NNX = Library(
    "flax",
    {
        **{"RNN": {}, "Bidirectional": {}, "Linear": {}, "SimpleCell": _SIMPLE},
        **dict.fromkeys(("LSTMCell", "OptimizedLSTMCell", "GRUCell"), _FLAX),
    },
    frozenset(_FLAX_NEUTRAL),
    "nnx.state(layer, nnx.Param)",
)
LINEN = Library(
    "flax",
    {
        **{"RNN": {}, "Bidirectional": {}, "SimpleCell": _SIMPLE},
        **dict.fromkeys(("LSTMCell", "OptimizedLSTMCell", "GRUCell", "MGUCell"), _FLAX),
        "ConvLSTMCell": {"strides": _ONES, "padding": ("SAME",)},
    },
    frozenset(_FLAX_NEUTRAL),
    "the parameters without a module",
)

_ELMAN = {"activation": ("tanh", "relu")}
_KERAS = {"activation": ("tanh",), "recurrent_activation": ("sigmoid",)}
_CONV = {
    **_KERAS,
    **{"strides": _ONES, "dilation_rate": _ONES},
    **{"padding": ("same",), "data_format": ("channels_last",)},
}
KERAS = Library(
    "keras",
    {
        **{"Bidirectional": {}, "SimpleRNN": _ELMAN, "SimpleRNNCell": _ELMAN},
        **dict.fromkeys(("LSTM", "LSTMCell", "GRU", "GRUCell"), _KERAS),
        **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), _CONV),
    },
    frozenset(
        {
            *("units", "filters", "kernel_size", "use_bias", "reset_after"),
            *("unit_forget_bias", "seed", "weights", "layer", "backward_layer"),
            *("dropout", "recurrent_dropout", "unroll", "use_cudnn"),
            *("return_sequences", "return_state"),
            *(
                f"{one}_{what}"
                for one in ("kernel", "recurrent", "bias", "activity")
                for what in ("initializer", "regularizer", "constraint")
            ),
        }
    ),
    "layer.get_weights()",
)
EQUINOX = Library(
    "equinox",
    {"LSTMCell": {}, "GRUCell": {}},
    frozenset({"input_size", "hidden_size", "use_bias", "dtype", "key"}),
    "a dict of its arrays",
)
TORCH = Library(
    "torch",
    dict.fromkeys(("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"), {}),
    frozenset(
        {
            *("input_size", "hidden_size", "num_layers", "proj_size", "bidirectional"),
            *("bias", "batch_first", "dropout", "nonlinearity", "device", "dtype"),
        }
    ),
    "its state_dict(), or the prefix of such a layer in it",
)
