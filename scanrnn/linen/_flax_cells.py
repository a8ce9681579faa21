"""Cells with Flax's names, options, weights and carries, and with our options too."""

import operator
import types
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scanrnn import cells, layers
from scanrnn.linen import _weights
from scanrnn.linen._fields import Named


class FlaxCell(Named, nn.RNNCellBase, kw_only=True):
    """The base of cells with Flax's names; the class of Flax is their second base."""

    _make: ClassVar[Callable[..., cells.Cell]]
    _form: ClassVar[Callable[..., dict]]
    _flax: ClassVar[Any]
    _carry: ClassVar[type]
    _ours: ClassVar[tuple[str, ...]]

    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self, carry: Any, inputs: jax.Array, *, deterministic: bool | None = None
    ) -> tuple[Any, jax.Array]:
        """Make one step.

        Args:
            carry: from `initialize_carry` or the step before, in Flax's form; or the
                NamedTuple of a layer of ours.
            inputs: `[..., D]`, with any number of batch axes.
            deterministic: see `RNNCell`.

        Returns:
            The carry after the step, in the form in which it came, and the output
            `[..., H]`.

        Raises:
            TypeError: if the carry has the wrong type.
            ValueError: if a shape is wrong, or there is noise to draw and no
                `deterministic`, or no "dropout" stream.
        """
        name, kind = type(self).__name__, type(self)._carry
        inputs, cell = jnp.asarray(inputs), self._own_cell()
        ours, back = layers.carry_as_ours(name, kind, carry)
        names = set(self.variables.get("params", {})) - {"options"}
        if cell is None or not names:
            # Flax's own step also makes the variables.
            theirs, y = super().__call__(layers.carry_as_flax(ours), inputs)
            if cell is None:
                return back(layers.carry_as_ours(name, kind, theirs)[0]), y
        tree = nn.meta.unbox(self.variables["params"])
        read = type(self)._form(tree)
        params = read | self._options(cell, read)
        keys = _weights.step_keys(self, deterministic)
        ours, y = layers.one_step(cell, params, ours, inputs, keys)
        return back(ours), y

    # The name in Python's errors about arguments: this class is private.
    __call__.__qualname__ = "RNNCell.__call__"

    def _own_cell(self):
        kind = type(self)
        flax = {field: getattr(self, field) for field in kind._flax.__annotations__}
        ours = {option: getattr(self, option) for option in kind._ours}
        return layers.own_cell(kind.__name__, kind._make, kind._flax, flax, ours)

    def _options(self, cell, read):
        """The weights that our options add."""
        features: Any = self.features  # pyright: ignore
        if read["recurrent_kernel"].shape[-2] != features:
            raise ValueError(
                f"{type(self).__name__}: the parameters are those of features="
                f"{read['recurrent_kernel'].shape[-2]}, the module has {features=}; "
                "make it with those"
            )
        sizes = read["kernel"].shape[-2], features, self.param_dtype  # pyright: ignore
        name, make = type(self).__name__, type(self)._make
        extra = layers.extra_weights(name, make, read, cell, sizes)

        def drawn(key):
            params = cell.init(key, *sizes, scheme="flax")
            return {name: params[name] for name in extra}

        return self.param("options", drawn) if extra else {}


_DOC = """One step of `scanrnn.cells.{factory}` by the name that Flax has for it.

It is a `flax.linen.{name}`: the parameters have Flax's names and, under the same key,
Flax's starting values. The fields have Flax's names, and the carry is Flax's, {carry}.
A call also takes the carry of a layer of ours, `{kind}`, and then returns one. The
options of `scanrnn.cells.{factory}` are accepted too, but not those that change the
shapes of Flax's parameters: for these use `RNNCell`. The parameters that they add are
in `options`.

Attributes:
    features: H, the size of the carry.
    **options: options of `flax.linen.{name}` and of `scanrnn.cells.{factory}`; and
        `deterministic`, to switch off their noise. An option that changes Flax's
        equations, such as an `activation_fn`, runs Flax's own step. It cannot be
        combined with options of ours.

Raises:
    TypeError: if an option does not exist or has the wrong type.
    ValueError: from a call, if options cannot be combined.

Example:
    >>> import jax, jax.numpy as jnp, scanrnn
    >>> x, key = jnp.ones([2, {spatial}3]), jax.random.key(0)
    >>> cell = scanrnn.linen.{name}(5{more})
    >>> carry = cell.initialize_carry(key, x.shape)
    >>> variables = cell.init(key, carry, x)
    >>> carry, y = cell.apply(variables, carry, x)
    >>> y.shape
    (2, {spatial}5)
"""


def _cell_of(
    flax: Any,
    make: Callable[..., cells.Cell],
    form: Any,
    more: str = ', norm="ba2016"',
    spatial: str = "",
) -> type[FlaxCell]:
    """Make the class for a factory whose cell Flax has too."""
    options = layers.cell_options(make)
    ours = {k: v for k, v in options.items() if k not in flax.__dataclass_fields__}
    names = layers.flax_attributes(flax, make, form, _DOC, more=more, spatial=spatial)
    names |= {
        "__module__": __name__,
        "__annotations__": dict.fromkeys(ours, Any),
        "_ours": tuple(ours),
        **ours,
    }
    body = operator.methodcaller("update", names)
    return types.new_class(flax.__name__, (FlaxCell, flax), {"kw_only": True}, body)


_LSTM = layers.joined_form("ii if ig io", "hi hf hg ho", "hi hf hg ho")
LSTMCell = _cell_of(nn.LSTMCell, cells.lstm, _LSTM)
OptimizedLSTMCell = _cell_of(nn.OptimizedLSTMCell, cells.lstm, _LSTM)
GRUCell = _cell_of(
    nn.GRUCell, cells.gru, layers.joined_form("ir iz in", "hr hz hn", "ir iz in", "hn")
)
MGUCell = _cell_of(
    nn.MGUCell, cells.mgu, layers.joined_form("if in", "hf hn", "if in", "hn")
)
SimpleCell = _cell_of(nn.SimpleCell, cells.elman, layers.joined_form("i", "h", "i"))
ConvLSTMCell = _cell_of(
    nn.ConvLSTMCell, cells.conv_lstm, layers.conv_form, ", kernel_size=(3,)", "4, "
)
