"""One step of any cell, as a module."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scanrnn import layers
from scanrnn.cells import Cell
from scanrnn.linen import _weights
from scanrnn.linen._fields import Named


class Step(Named, nn.RNNCellBase, kw_only=True):
    """The base class of `RNNCell` and of the modules of single cells."""

    deterministic: bool | None = None
    param_dtype: Any = jnp.float32
    carry_dtype: Any = None
    carry_init: Any = None
    scheme: Any = None
    kernel_init: Any = None
    recurrent_kernel_init: Any = None
    bias_init: Any = None

    def __call__(
        self, carry: Any, inputs: jax.Array, *, deterministic: bool | None = None
    ) -> tuple[Any, jax.Array]:
        """Make one step.

        Args:
            carry: from `initialize_carry` or the step before.
            inputs: `[..., D]`, with any number of batch axes; for a convolutional cell
                `[..., *spatial, C]`.
            deterministic: True for no noise, False for noise from the "dropout" stream
                of `rngs`. Some noise is the same in every step of a sequence, such as
                the mask of `recurrent_dropout`; if there is a stream
                "recurrent_dropout", it draws this noise. If there is noise to draw,
                this argument or the attribute must be given.

        Returns:
            The carry after the step, and the output `[..., H]`, in the cell's `dtype`,
            or in that of the carry if the cell has none.

        Raises:
            TypeError: if the carry has the wrong type.
            ValueError: if a shape is wrong, or there is noise to draw and no
                `deterministic`, or no "dropout" stream.
        """
        inputs = jnp.asarray(inputs)
        cell, _ = self.cell_and_features()
        params = self.weights(inputs.shape[-1])
        keys = _weights.step_keys(self, deterministic)
        carry, y = layers.one_step(cell, params, carry, inputs, keys)
        return carry, y if cell.dtype is None else y.astype(cell.dtype)

    # The name in Python's errors about arguments: this class is private.
    __call__.__qualname__ = "RNNCell.__call__"

    @nn.nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> Any:
        """The carry before the first step.

        Args:
            rng: PRNG key for `carry_init`.
            input_shape: shape of the input of a step, `(..., D)`.

        Returns:
            The carry, such as an `LSTMCarry`.

        Raises:
            TypeError: if `input_shape` is no shape.
            ValueError: if the carry is learned and the module is not bound to weights.
        """
        shape = layers.step_shape(type(self).__name__, input_shape)
        place = self.place(shape[-1])
        filled = functools.partial(layers.filled_params, place, self.param_dtype)
        dtype = layers.carry_dtype(self.carry_dtype, self.param_dtype)
        if self.carry_init is not None:
            zeros = filled(0)
            draw = _weights.carry_draw(rng, self.carry_init, place, zeros, shape)
            return layers.first_carry(place.cell, zeros, shape, dtype, draw)
        with jax.ensure_compile_time_eval():
            carry, other = (
                layers.first_carry(place.cell, filled(value), shape, dtype, None)
                for value in (0, 1)
            )
            pairs = zip(jax.tree.leaves(carry), jax.tree.leaves(other), strict=True)
            learnt = any((a != b).any() for a, b in pairs)
        if not learnt:
            return carry
        if self.scope is None:
            raise ValueError(
                f"{type(self).__name__}: the first carry is a parameter; call "
                'apply(variables, rng, input_shape, method="initialize_carry")'
            )
        params = self.weights(shape[-1])
        return layers.first_carry(place.cell, params, shape, dtype, None)

    initialize_carry.__qualname__ = "RNNCell.initialize_carry"

    @nn.compact
    def weights(self, in_features: int) -> dict[str, jax.Array]:
        """The parameters, by the names that the cell gives them.

        Args:
            in_features: D, the size of the last axis of an input.
        """
        return _weights.declare(self, "layers_0", self.place(in_features))

    @nn.nowrap
    def place(self, in_features: int) -> layers.Place:
        """The cell and its sizes, in the form of a layer.

        Args:
            in_features: D, the size of the last axis of an input.
        """
        cell, features = self.cell_and_features()
        dtypes = {"param_dtype": self.param_dtype, "carry_dtype": self.carry_dtype}
        layers.check_step_cell(
            type(self).__name__, cell, {"features": features}, dtypes
        )
        return layers.Place(cell, in_features, features, cell.out_features(features))

    @property
    def num_feature_axes(self) -> int:
        """The number of the last axes of an input that are not batch axes."""
        return self.cell_and_features()[0].num_feature_axes

    @nn.nowrap
    def cell_and_features(self) -> tuple[Any, Any]:
        """The cell, and H."""
        raise NotImplementedError


class RNNCell(Step):
    r"""One step of any cell, with its weights.

    .. math::
        (s_t, y_t) = \mathrm{cell}(s_{t-1}, x_t)

    This is the Linen form of `scanrnn.nnx.RNNCell`. It is called like Flax's cells, so
    it can be used in `RNN`, `flax.linen.RNN` and `flax.linen.scan`. The parameters are
    in `layers_0`, as in a layer of this cell, so the parameters of a trained layer can
    be used here.

    Attributes:
        cell: a `scanrnn.cells.Cell`.
        features: H, the size of the carry.
        **options: `deterministic`, `param_dtype`, `carry_dtype`, `carry_init`,
            `scheme`, `kernel_init`, `recurrent_kernel_init`, `bias_init`: see
            `scanrnn.nnx.RNNCell`.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> x, key = jnp.ones([2, 3]), jax.random.key(0)
        >>> cell = scanrnn.linen.RNNCell(scanrnn.cells.lstm(norm="ba2016"), 5)
        >>> carry = cell.initialize_carry(key, x.shape)
        >>> variables = cell.init(key, carry, x)
        >>> carry, y = cell.apply(variables, carry, x)
        >>> y.shape, carry.c.shape
        ((2, 5), (2, 5))
    """

    cell: Cell
    features: int

    @nn.nowrap
    def cell_and_features(self) -> tuple[Any, Any]:
        """The fields `cell` and `features`."""
        return self.cell, self.features


def runs_as_ours(cell: Any) -> bool:
    """Whether a layer may run the cell in this module in place of the module.

    It may not if a subclass has its own step or its own first carry.
    """
    if not isinstance(cell, Step) or cell.carry_init is not None:
        return False
    kind: Any = type(cell)
    names = "__call__", "initialize_carry", "weights"
    return not any(name in vars(base) for base in _own_bases(kind) for name in names)


def _own_bases(kind):
    """The classes that users derived."""
    return [base for base in kind.__mro__[: kind.__mro__.index(Step)]]
