"""One step of any cell, as a module."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn import layers
from scanrnn.cells import Cell
from scanrnn.nnx import _rngs, _weights
from scanrnn.nnx._view import Viewed


class RNNCell(Viewed, nnx.RNNCellBase):
    r"""One step of any cell, with its weights.

    .. math::
        (s_t, y_t) = \mathrm{cell}(s_{t-1}, x_t)

    Use it in a loop of your own: an attention decoder, an agent, a search. It is called
    like Flax's cells, so it can also be used in `RNN`, `flax.nnx.RNN` and
    `flax.nnx.scan`. Its weights have the same names as those of `RNN(cell, in_features,
    hidden_features)`. So ``nnx.update(cell, nnx.state(layer))`` gives it the weights of
    a trained layer.

    Args:
        cell: a `scanrnn.cells.Cell`.
        in_features: D, the size of the last axis of an input.
        hidden_features: H, the size of the carry.
        deterministic: whether to switch off the noise of the cell.
        param_dtype: dtype of the weights.
        carry_dtype: dtype of the carry; None for float32, or wider if `param_dtype` is.
        carry_init: initializer of the first carry, as in Flax; None for the cell's own
            first carry.
        scheme: how the weights are drawn, see `Cell.init`; None for the cell's default.
        kernel_init: initializer of the input weights, in place of the scheme's.
        recurrent_kernel_init: likewise for the recurrent weights of each gate.
        bias_init: likewise for the biases.
        kernel_metadata: metadata of the `nnx.Param` of the input weights.
        recurrent_kernel_metadata: likewise for the recurrent weights.
        bias_metadata: likewise for the biases.
        rngs: its `params` stream draws the weights. The module does not keep it.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a size is less than 1, or `rngs` has no `params` and no default
            stream.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> lstm = scanrnn.cells.lstm(norm="ba2016")
        >>> cell = scanrnn.nnx.RNNCell(lstm, 3, 5, rngs=nnx.Rngs(0))
        >>> carry = cell.initialize_carry((2, 3))
        >>> for x in jnp.ones([7, 2, 3]):
        ...     carry, y = cell(carry, x)
        >>> y.shape, carry.c.shape
        ((2, 5), (2, 5))
    """

    def __init__(
        self,
        cell: Cell,
        in_features: int,
        hidden_features: int,
        *,
        deterministic: bool = False,
        param_dtype: Any = jnp.float32,
        carry_dtype: Any = None,
        carry_init: nnx.Initializer | None = None,
        scheme: Any = None,
        kernel_init: nnx.Initializer | None = None,
        recurrent_kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        kernel_metadata: Mapping[str, Any] | None = None,
        recurrent_kernel_metadata: Mapping[str, Any] | None = None,
        bias_metadata: Mapping[str, Any] | None = None,
        rngs: nnx.Rngs | None = None,
    ):
        """Draw the weights; see the class."""
        sizes = {"in_features": in_features, "hidden_features": hidden_features}
        dtypes = {"param_dtype": param_dtype, "carry_dtype": carry_dtype}
        layers.check_step_cell(type(self).__name__, cell, sizes, dtypes)
        self.cell = cell
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.deterministic = deterministic
        self.param_dtype = param_dtype
        self.carry_dtype = layers.carry_dtype(carry_dtype, param_dtype)
        self.carry_init = carry_init
        initializers = layers.by_family(kernel_init, recurrent_kernel_init, bias_init)
        metadata = layers.by_family(
            kernel_metadata, recurrent_kernel_metadata, bias_metadata
        )
        (place,) = self.places
        key = _rngs.params_stream(type(self).__name__, rngs)()
        weights = _weights.draw(place, key, param_dtype, scheme, initializers, metadata)
        self.layers = nnx.List([weights])

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
            carry: from `initialize_carry` or the step before.
            inputs: `[..., D]`, with any number of batch axes; for a convolutional cell
                `[..., *spatial, C]`.
            deterministic: overrides the constructor's argument.
            rngs: its `dropout` stream draws new noise at every call. Some noise is the
                same in every step of a sequence, such as the mask of
                `recurrent_dropout`. If there is a stream `recurrent_dropout`, it draws
                this noise, which stays the same until that stream is called:
                ``rngs.recurrent_dropout()`` begins the next sequence.

        Returns:
            The carry after the step, and the output `[..., H]`, in the cell's `dtype`,
            or in that of the carry if the cell has none.

        Raises:
            TypeError: if the carry or `rngs` has the wrong type.
            ValueError: if a shape is wrong, or there is noise to draw and no `rngs`.
        """
        ((layer,),) = self.stack
        quiet = self.deterministic if deterministic is None else deterministic
        name = type(self).__name__
        keys = None if quiet else lambda: _rngs.step_keys(name, rngs)
        _rngs.check_rngs(name, rngs)
        carry, y = layers.one_step(*layer, carry, jnp.asarray(inputs), keys)
        return carry, y if self.cell.dtype is None else y.astype(self.cell.dtype)

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        carry_init: nnx.Initializer | None = None,
    ) -> Any:
        """The carry before the first step.

        Args:
            input_shape: shape of the input of a step, `(..., D)`.
            rngs: its `carry` stream gives the keys of `carry_init`.
            carry_init: initializer of the carry, in place of the constructor's. If
                neither is given, the carry is the cell's own: zeros, unless it is
                learned.

        Returns:
            The carry, such as an `LSTMCarry`.

        Raises:
            TypeError: if `input_shape` is no shape.
            ValueError: if there is a `carry_init` and no `rngs`.
        """
        ((layer,),) = self.stack
        shape = layers.step_shape(type(self).__name__, input_shape)
        init = carry_init or self.carry_init
        draw = _rngs.carry_draw(type(self).__name__, rngs, init) if init else None
        return layers.first_carry(*layer, shape, self.carry_dtype, draw)

    @property
    def num_feature_axes(self) -> int:
        """The number of the last axes of an input that are not batch axes."""
        return self.cell.num_feature_axes

    @property
    def places(self) -> list[layers.Place]:
        """The cell and its sizes, in the form of `RNN.places`."""
        out = self.cell.out_features(self.hidden_features)
        sizes = self.in_features, self.hidden_features, out
        return [layers.Place(self.cell, *sizes)]

    @property
    def stack(self) -> list[list[layers.Layer]]:
        """The cell and its weights, in the form of `RNN.stack`."""
        return [[layers.Layer(self.cell, _weights.values(self.layers[0]))]]


def runs_as_ours(cell: Any) -> bool:
    """Whether a layer may run the cell in this module in place of the module.

    It may not if a subclass has its own step or its own first carry.
    """
    if not isinstance(cell, RNNCell) or cell.carry_init is not None:
        return False
    return all(
        inspect.unwrap(theirs) is inspect.unwrap(ours)  # `nnx.tabulate` wraps methods
        for theirs, ours in (
            (type(cell).__call__, RNNCell.__call__),
            (type(cell).initialize_carry, RNNCell.initialize_carry),
        )
    )
