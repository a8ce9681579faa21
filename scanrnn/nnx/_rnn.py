"""The recurrent layer: stacked cells, scanned over time."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn import layers
from scanrnn.cells import Cell
from scanrnn.nnx import _foreign, _rngs, _weights
from scanrnn.nnx._cell import RNNCell, runs_as_ours
from scanrnn.nnx._flax_cells import FlaxCell
from scanrnn.nnx._view import Viewed


class RNN(Viewed, nnx.Module):
    r"""Recurrent layers over a sequence, made of any cell.

    .. math::
        (s_t^l, x_t^{l+1}) = \mathrm{cell}_l(s_{t-1}^l, x_t^l), \quad l = 1..L

    It takes the call arguments of `flax.nnx.RNN`, with the same meaning. With a cell of
    `scanrnn.cells` its only state is `nnx.Param` variables. So it is a plain pytree for
    `jax.jit`, `jax.grad`, `jax.vmap` and `jax.export`, and works with the transforms of
    NNX. A Flax cell keeps the state that it has.

    The weights are in `layers[l]`, under the names that the cell gives them; those of
    the backward direction are in `backward_layers[l]`.

    Args:
        cell: a `scanrnn.cells.Cell`, or a list with one for each layer; or a Flax cell:
            a `flax.nnx.RNNCellBase`, or a module with its methods. A Flax cell already
            has its sizes, dtypes and weights, so the arguments for these are refused.
            Its output may be any pytree of arrays.
        in_features: D, the size of the last axis of the inputs.
        hidden_features: H, the size of the carry, or a list with one for each layer.
        num_layers: L, number of stacked layers; None for the length of the lists, or
            one.
        bidirectional: whether each layer runs in both directions, with weights for
            each, and concatenates both outputs: 2H features.
        residual: whether to add the input of a layer to its output, if both have the
            same number of features; "gnmt" does so from the third layer on. What is
            added is the input before `dropout`.
        highway: whether a gate chooses between output and input, in the same layers as
            for `residual`.
        dropout: probability with which a feature between two layers is set to zero.
            With one layer nothing is dropped, and there is a warning.
        deterministic: whether to switch off dropout and all noise of the cell. If it is
            False and `cell` is a module of ours, the option of that module decides. The
            argument of a call overrides both.
        param_dtype: dtype of the weights.
        carry_dtype: dtype of the carry; None for float32, or wider if `param_dtype` is.
        time_major: the inputs are `[T, ..., D]` and not `[..., T, D]`.
        return_carry: also return the last carry.
        reverse: run from the last step to the first.
        keep_order: with `reverse`, return the outputs in the order of the inputs, not
            in the order in which they were computed.
        zero_padding: outputs of steps that do not count are zeros.
        unroll: see `scanrnn.scan`.
        implementation: see `scanrnn.scan`.
        wavefront: run equal layers side by side, each one step behind the one below.
            None does so where a launch takes longer than the matrix products of a step.
        scheme: how the weights are drawn, see `Cell.init`; None for the cell's default.
        kernel_init: initializer of the input weights, in place of the scheme's.
        recurrent_kernel_init: likewise for the recurrent weights of each gate.
        bias_init: likewise for the biases.
        kernel_metadata: metadata of the `nnx.Param` of the input weights, such as
            ``{"out_sharding": (None, "model")}``.
        recurrent_kernel_metadata: likewise for the recurrent weights.
        bias_metadata: likewise for the biases.
        state_axes: for a Flax cell with other state than weights: what happens to that
            state from step to step, as in `flax.nnx.RNN`. `nnx.Carry`, the default,
            carries it; None keeps it the same at every step.
        broadcast_rngs: for such a cell, the streams that give every step the same key.
            A stream that the cell does not have is ignored.
        rngs: its `params` stream draws the weights; required, except for a Flax cell,
            which has its weights. Then anything that `flax.nnx.RNN` takes is accepted,
            and not used. The layer does not keep it, so a random `carry_init` of a Flax
            cell draws the same carry at every call without `rngs`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a size is less than 1, an option has an unknown value, options
            cannot be combined, or a list does not have one entry for each layer.

    Warns:
        UserWarning: for `dropout` with one layer, and for `residual` or `highway` if no
            layer has as many features out as in.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> cell = scanrnn.cells.gru(norm="ba2016")
        >>> rnn = scanrnn.nnx.RNN(cell, 3, 5, num_layers=2, rngs=nnx.Rngs(0))
        >>> rnn(jnp.ones([2, 7, 3]), seq_lengths=jnp.array([7, 4])).shape
        (2, 7, 5)
        >>> rnn.layers[0]["recurrent_kernel"].shape
        (5, 15)
    """

    def __init__(
        self,
        cell: Cell | Sequence[Cell] | nnx.RNNCellBase | nnx.Module,
        in_features: int | None = None,
        hidden_features: int | Sequence[int] | None = None,
        *,
        num_layers: int | None = None,
        bidirectional: bool = False,
        residual: bool | Literal["gnmt"] = False,
        highway: bool = False,
        dropout: float = 0.0,
        deterministic: bool = False,
        param_dtype: Any = jnp.float32,
        carry_dtype: Any = None,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        zero_padding: bool = False,
        unroll: int | bool = 1,
        implementation: str | None = None,
        wavefront: bool | None = None,
        scheme: Any = None,
        kernel_init: nnx.Initializer | None = None,
        recurrent_kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        kernel_metadata: Mapping[str, Any] | None = None,
        recurrent_kernel_metadata: Mapping[str, Any] | None = None,
        bias_metadata: Mapping[str, Any] | None = None,
        state_axes: Mapping[Any, Any] | None = None,
        broadcast_rngs: Any = None,
        rngs: nnx.Rngs | Any = None,
    ):
        """Draw the weights; see the class."""
        of_flax = layers.is_recurrent(cell, nnx.Module)
        if not of_flax:
            layers.check_cell(cell, "nnx")
        self.cell: Any = cell
        self.in_features: Any = in_features
        self.hidden_features: Any = hidden_features
        self.num_layers: Any = num_layers
        self.bidirectional = bidirectional
        self.residual = residual
        self.highway = highway
        self.dropout = dropout
        self.deterministic = deterministic
        self.param_dtype = param_dtype
        self.carry_dtype = carry_dtype
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.zero_padding = zero_padding
        self.unroll = layers.check_scan_options(implementation, unroll)
        self.implementation = implementation
        self.wavefront = wavefront
        layers.check_flags(self)
        self.state_axes = _foreign.checked_axes(state_axes)
        self.broadcast_rngs = broadcast_rngs
        self.layers = nnx.List([])
        self.backward_layers = nnx.List([])
        initializers = layers.by_family(kernel_init, recurrent_kernel_init, bias_init)
        metadata = layers.by_family(
            kernel_metadata, recurrent_kernel_metadata, bias_metadata
        )
        if of_flax:
            _foreign.check(self, scheme, initializers, metadata)
            self.num_layers = 1
        else:
            stream = _rngs.params_stream(type(self).__name__, rngs)
            _weights.draw_all(self, stream, scheme, initializers, metadata)

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        seq_lengths: jax.Array | None = None,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        resets: jax.Array | None = None,
        return_carry: bool | None = None,
        return_all_carries: bool = False,
        include_initial: bool = False,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        zero_padding: bool | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Any:
        """Run the layers over a sequence.

        Args:
            inputs: `[..., T, D]`, or `[T, ..., D]` if time-major, with any number of
                batch axes, also none; for a convolutional cell `[..., T, *spatial, C]`.
            initial_carry: the carry before the first step, in the form that
                `return_carry` returns; None for the cell's own.
            seq_lengths: integers `[...]` from 0 to T. Later steps do not count: the
                carry stays as it was, and inputs there, NaN included, are ignored. With
                `reverse`, a sequence is read from its own end. Traced lengths cannot be
                checked: less than 0 counts as 0, more than T as T.
            mask: booleans, with the shape of the inputs without features. A step with
                False does not count.
            segment_ids: integers of that shape, at least 0, for several sequences
                packed into one. Where the number changes, also after a step with 0, a
                sequence starts with the cell's own first carry. Steps with 0 do not
                count.
            resets: booleans of that shape. A sequence starts at a step with True:
                *before* it, the carry is set to the cell's own first carry. A backward
                run resets the carry between the same two steps. An RL environment
                reports ``done`` after a step, so pass the ``done`` of the previous
                step.
            return_carry: overrides the constructor's argument.
            return_all_carries: return the carries after all steps, the last included.
                Their fields have a time axis in the same place as the inputs.
            include_initial: with `return_all_carries`, return T + 1 carries. The first
                one (with `reverse`, the last) is the carry before the first step.
            time_major: overrides the constructor's argument.
            reverse: likewise.
            keep_order: likewise.
            zero_padding: likewise.
            deterministic: likewise.
            rngs: its `dropout` stream draws dropout and the noise of the cell. Its
                `carry` stream draws the initial carry of a Flax cell; without it, the
                carry is the same at every call.

        Returns:
            The outputs `[..., T, H]`, or `[T, ..., H]` if time-major, in the cell's
            `dtype`, or in the carry's if it has none. With `return_carry` or
            `return_all_carries`, a pair: the last carry or all carries, and the
            outputs. The carry of several layers is a tuple with one for each layer. The
            carry of two directions is a pair.

        Raises:
            TypeError: if `initial_carry` has the wrong structure or dtype, another
                argument the wrong dtype, or `rngs` the wrong type.
            ValueError: if an array has the wrong shape, a length is not from 0 to T, a
                segment has a negative number, `include_initial` is given without
                `return_all_carries`, or there is noise to draw and no `rngs`.
        """
        call = layers.make_call(
            self,
            initial_carry=initial_carry,
            seq_lengths=seq_lengths,
            mask=mask,
            segment_ids=segment_ids,
            resets=resets,
            return_carry=return_carry,
            return_all_carries=return_all_carries,
            include_initial=include_initial,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
            zero_padding=zero_padding,
        )
        if deterministic is None:
            own = isinstance(self.cell, RNNCell | FlaxCell) and self.cell.deterministic
            deterministic = self.deterministic or own
        layers.check_flag("deterministic", deterministic)
        _rngs.check_rngs("RNN", rngs)
        if isinstance(self.cell, nnx.Module) and not runs_as_ours(self.cell):
            return _foreign.run(self, inputs, call, deterministic, rngs)
        draw_key = functools.partial(_rngs.noise_key, "RNN", rngs)
        key = None if deterministic else draw_key
        options = {name: getattr(self, name) for name in layers.Spec._fields}
        spec = layers.Spec(**options)
        if isinstance(self.cell, RNNCell):
            spec = spec._replace(carry_dtype=self.cell.carry_dtype)
        return layers.run_own(spec, self.places, self.stack, inputs, call, key)

    # Properties: `flax.nnx.tabulate` runs public methods as programs of arrays.

    @property
    def places(self) -> list[layers.Place]:
        """The cell of every layer, with its connection, and its sizes."""
        if isinstance(self.cell, RNNCell):
            return self.cell.places
        return layers.places(
            self.cell,
            self.in_features,
            self.hidden_features,
            self.num_layers,
            bidirectional=self.bidirectional,
            highway=self.highway,
        )

    @property
    def stack(self) -> list[list[layers.Layer]]:
        """The cell and the weights of every layer and direction."""
        if isinstance(self.cell, RNNCell):
            return self.cell.stack
        directions = _weights.directions(self)
        return [
            [layers.Layer(place.cell, _weights.values(own[i])) for own in directions]
            for i, place in enumerate(self.places)
        ]
