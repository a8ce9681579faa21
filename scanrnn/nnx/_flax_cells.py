"""Cells with Flax's names, options, weights and carries, and with our options too."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn import cells, layers
from scanrnn.nnx import _rngs, _weights
from scanrnn.nnx._view import Viewed


class FlaxCell(Viewed, nnx.RNNCellBase):
    """The base of cells with Flax's names; the class of Flax is their second base."""

    _make: ClassVar[Callable[..., cells.Cell]]
    _form: ClassVar[Callable[..., dict]]
    _flax: ClassVar[type[nnx.Module]]
    _carry: ClassVar[type]

    in_features: int
    hidden_features: int
    param_dtype: Any
    dtype: Any
    carry_init: Any
    rngs: Any

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        deterministic: bool = False,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ):
        """Draw the weights as Flax draws them; see the class."""
        name, make, flax = type(self).__name__, type(self)._make, type(self)._flax
        sizes = {"in_features": in_features, "hidden_features": hidden_features}
        layers.check_step_cell(name, make(), sizes, {})
        stream = _rngs.params_stream(type(self).__name__, rngs)
        known = inspect.signature(flax.__init__).parameters
        theirs = layers.own_options(self, known, options, f"flax.nnx.{name}")
        flax_init: Any = super().__init__
        flax_init(in_features, hidden_features, rngs=rngs, **theirs)
        # Flax's default may be a dtype.
        theirs["dtype"] = self.dtype
        self.cell = layers.own_cell(name, make, flax.__init__, theirs, options)
        self.deterministic = deterministic
        self.options = nnx.Dict({})
        if self.cell is not None:
            self._draw_options(name, stream)

    def _draw_options(self, name, stream):
        """Draw the weights that our options add."""
        cell: Any = self.cell
        sizes = self.in_features, self.hidden_features, self.param_dtype
        read = type(self)._form(self._tree())
        extra = layers.extra_weights(name, type(self)._make, read, cell, sizes)
        if extra:
            drawn = cell.init(stream(), *sizes, scheme="flax")
            self.options = nnx.Dict({key: nnx.Param(drawn[key]) for key in extra})

    def __call__(
        self,
        carry: Any,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> tuple[Any, jax.Array]:
        """Make one step.

        Args:
            carry: from `initialize_carry` or the step before, in Flax's form; or the
                NamedTuple of a layer of ours.
            inputs: `[..., D]`, with any number of batch axes.
            deterministic: overrides the constructor's argument.
            rngs: see `RNNCell`.

        Returns:
            The carry after the step, in the form in which it came, and the output
            `[..., H]`.

        Raises:
            TypeError: if the carry or `rngs` has the wrong type.
            ValueError: if a shape is wrong, or there is noise to draw and no `rngs`.
        """
        name, kind = type(self).__name__, type(self)._carry
        _rngs.check_rngs(name, rngs)
        ours, back = layers.carry_as_ours(name, kind, carry)
        if self.cell is None:
            carry, y = super().__call__(layers.carry_as_flax(ours), inputs)
            return back(layers.carry_as_ours(name, kind, carry)[0]), y
        quiet = self.deterministic if deterministic is None else deterministic
        keys = None if quiet else lambda: _rngs.step_keys(name, rngs)
        x = jnp.asarray(inputs)
        ((layer,),) = self.stack
        ours, y = layers.one_step(*layer, ours, x, keys)
        return back(ours), y

    # The name in Python's errors about arguments: this class is private.
    __call__.__qualname__ = "RNNCell.__call__"

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        carry_init: nnx.Initializer | None = None,
    ) -> Any:
        """The carry before the first step, in Flax's form.

        Args:
            input_shape: shape of the input of a step, `(..., D)`.
            rngs: its `carry` stream gives the keys of `carry_init`; zeros need none.
            carry_init: initializer of the carry, in place of the constructor's.

        Returns:
            An array, or the pair (c, h).
        """
        if isinstance(rngs, nnx.Rngs):
            name = type(self).__name__
            rngs = _rngs.stream(name, rngs, "carry", "the initial carry")
        if rngs is None and not (self.rngs or carry_init or self.carry_init):
            rngs = nnx.Rngs(0)
        return super().initialize_carry(input_shape, rngs, carry_init)

    initialize_carry.__qualname__ = "RNNCell.initialize_carry"

    @property
    def stack(self) -> list[list[layers.Layer]]:
        """Our cell and its parameters, in the form of `RNN.stack`."""
        cell: Any = self.cell
        params = type(self)._form(self._tree()) | _weights.values(self.options)
        return [[layers.Layer(cell, params)]]

    def _tree(self):
        """The arrays of Flax's modules: by name of the module, then of the array."""
        modules = vars(self).items()
        return {
            name: _weights.values(module)
            for name, module in modules
            if isinstance(module, nnx.Linear)
        }


_DOC = """One step of `scanrnn.cells.{factory}` by the name that Flax has for it.

It is a `flax.nnx.{name}`: the weights have Flax's names and, under the same key, Flax's
starting values. The options have Flax's names, and the carry is Flax's, {carry}. A call
also takes the carry of a layer of ours, `{kind}`, and then returns one. The options of
`scanrnn.cells.{factory}` are accepted too, but not those that change the shapes of
Flax's weights: for these use `RNNCell`. The weights that they add are in `options`.

Args:
    in_features: D, the size of the last axis of an input.
    hidden_features: H, the size of the carry.
    **options: options of `flax.nnx.{name}`, where `rngs` is required, and of
        `scanrnn.cells.{factory}`; and `deterministic`, to switch off their noise.
        An option that changes Flax's equations, such as an `activation_fn`, runs
        Flax's own step. It cannot be combined with options of ours.

Raises:
    TypeError: if an option does not exist or has the wrong type.
    ValueError: if options cannot be combined.

Example:
    >>> import jax.numpy as jnp, scanrnn
    >>> from flax import nnx
    >>> x = jnp.ones([2, 3])
    >>> cell = scanrnn.nnx.{name}(3, 5, norm="ba2016", rngs=nnx.Rngs(0))
    >>> carry, y = cell(cell.initialize_carry(x.shape), x)
    >>> y.shape, nnx.RNN(cell)(jnp.ones([2, 7, 3])).shape
    ((2, 5), (2, 7, 5))
"""


def _cell_of(flax: Any, make: Callable[..., cells.Cell], form: Any) -> type[FlaxCell]:
    """Make the class for a factory whose cell Flax has too."""
    name = flax.__name__
    names = layers.flax_attributes(flax, make, form, _DOC)
    names |= {
        "__module__": __name__,
        "__init__": layers.named_constructor(FlaxCell, name),
    }
    return type(name, (FlaxCell, flax), names)


LSTMCell = _cell_of(
    nnx.LSTMCell,
    cells.lstm,
    layers.joined_form("ii if_ ig io", "hi hf hg ho", "hi hf hg ho"),
)
OptimizedLSTMCell = _cell_of(
    nnx.OptimizedLSTMCell,
    cells.lstm,
    layers.joined_form("dense_i", "dense_h", "dense_h"),
)
GRUCell = _cell_of(
    nnx.GRUCell, cells.gru, layers.joined_form("dense_i", "dense_h", "dense_i", "")
)
SimpleCell = _cell_of(
    nnx.SimpleCell, cells.elman, layers.joined_form("dense_i", "dense_h", "dense_i")
)
