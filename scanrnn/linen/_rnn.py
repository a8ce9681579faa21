"""The recurrent layer as a Linen module."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import FrozenDict

from scanrnn import layers
from scanrnn.cells import Cell
from scanrnn.linen import _foreign, _weights
from scanrnn.linen._cell import Step, runs_as_ours
from scanrnn.linen._fields import Named
from scanrnn.linen._flax_cells import FlaxCell


class Recurrent(Named, nn.Module, kw_only=True):
    """The base class of `RNN` and of the layers of single cells: fields and call."""

    num_layers: int | None = None
    bidirectional: bool = False
    residual: bool | Literal["gnmt"] = False
    highway: bool = False
    dropout: float = 0.0
    deterministic: bool | None = None
    param_dtype: Any = jnp.float32
    carry_dtype: Any = None
    zero_padding: bool = False
    implementation: str | None = None
    wavefront: bool | None = None
    scheme: Any = None
    kernel_init: Any = None
    recurrent_kernel_init: Any = None
    bias_init: Any = None

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        init_key: jax.Array | None = None,
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
    ) -> Any:
        """Run the layers over a sequence.

        Most arguments are those of a call of `scanrnn.nnx.RNN`; see there for details.

        Args:
            inputs: `[..., T, D]`, or `[T, ..., D]` if time-major.
            initial_carry: the carry before the first step; None for the cell's own.
            init_key: PRNG key for the first carry of a Flax cell; None for the same
                carry at every call.
            seq_lengths: integers `[...]` from 0 to T; later steps do not count.
            mask: booleans, with the shape of the inputs without features; a step with
                False does not count.
            segment_ids: integers of that shape; a sequence starts where they change.
            resets: booleans of that shape; a sequence starts at a step with True.
            return_carry: also return the last carry.
            return_all_carries: return the carries after all steps, the last included.
            include_initial: return the carry before the first step among these.
            time_major: overrides the field.
            reverse: likewise.
            keep_order: likewise.
            zero_padding: likewise.
            deterministic: True for no noise, False for noise from the "dropout" stream
                of `rngs`. If there is noise to draw, this argument or the field must be
                given, here or in the cell.

        Returns:
            The outputs `[..., T, H]`, or `[T, ..., H]` if time-major. With
            `return_carry` or `return_all_carries`, a pair: the carry, and the outputs.

        Raises:
            TypeError: if an argument has the wrong type or dtype.
            ValueError: if an argument has the wrong shape or an unknown value, or there
                is noise to draw and no `deterministic`, or no "dropout" stream.
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
            deterministic = self.deterministic
        cell, features = self.cells_and_features()
        if isinstance(cell, Step | FlaxCell) and deterministic is None:
            deterministic = cell.deterministic
        if deterministic is not None:
            layers.check_flag("deterministic", deterministic)
        if layers.is_recurrent(cell, nn.Module) and not runs_as_ours(cell):
            return _foreign.run(self, inputs, call, deterministic, init_key)
        inputs = layers.as_array(inputs)
        # Weights take their sizes from the inputs, before the call checks these.
        if not inputs.ndim:
            layers.check_inputs(inputs, None, 1)
        if runs_as_ours(cell):
            return self._run_steps_of(cell, inputs, call, deterministic)
        return self._run_own(cell, features, inputs, call, deterministic)

    # The name in Python's errors about arguments: this class is private.
    __call__.__qualname__ = "RNN.__call__"

    @nn.nowrap
    def cells_and_features(self) -> tuple[Any, Any]:
        """The cell and the size H of all layers, or a sequence with those of each."""
        raise NotImplementedError

    def _run_own(self, cell, features, inputs, call, deterministic):
        layers.check_cell(cell, "linen")
        layers.check_scan_options(self.implementation, self.unroll)
        in_features = inputs.shape[-1]
        cell, in_features, features, num_layers = layers.check_layers(
            cell,
            in_features,
            features,
            self.num_layers,
            param_dtype=self.param_dtype,
            carry_dtype=self.carry_dtype,
            residual=self.residual,
            highway=self.highway,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            sized="features",
        )
        places = layers.places(
            cell,
            in_features,
            features,
            num_layers,
            bidirectional=self.bidirectional,
            highway=self.highway,
        )
        layers.warn_if_no_skip(self.residual, self.highway, places)
        names = ["layers", "backward_layers"][: 1 + self.bidirectional]
        stack = [
            [
                layers.Layer(place.cell, _weights.declare(self, f"{name}_{i}", place))
                for name in names
            ]
            for i, place in enumerate(places)
        ]
        dtype = layers.carry_dtype(self.carry_dtype, self.param_dtype)
        return self._run(places, stack, dtype, inputs, call, deterministic)

    def _run_steps_of(self, cell, inputs, call, deterministic):
        """Run the cell that a module for one step holds."""
        _foreign.check(self)
        in_features = inputs.shape[-1]
        place, params = cell.place(in_features), cell.weights(in_features)
        dtype = layers.carry_dtype(cell.carry_dtype, cell.param_dtype)
        stack = [[layers.Layer(place.cell, params)]]
        return self._run([place], stack, dtype, inputs, call, deterministic)

    def _run(self, places, stack, carry_dtype, inputs, call, deterministic):
        spec = layers.Spec(
            num_layers=len(places),
            bidirectional=self.bidirectional,
            residual=self.residual,
            dropout=self.dropout,
            carry_dtype=carry_dtype,
            unroll=self.unroll,
            implementation=self.implementation,
            wavefront=self.wavefront,
        )
        # Nobody uses the outputs of `init`, so it needs no noise.
        quiet = deterministic or self.is_initializing()
        key = None if quiet else lambda: _weights.noise_key(self, deterministic)
        return layers.run_own(spec, places, stack, inputs, call, key)


class RNN(Recurrent):
    r"""Recurrent layers over a sequence, made of any cell.

    .. math::
        (s_t^l, x_t^{l+1}) = \mathrm{cell}_l(s_{t-1}^l, x_t^l), \quad l = 1..L

    This is the Linen form of `scanrnn.nnx.RNN`, with the same options, call and
    results. It has the fields of `flax.linen.RNN` in the same order. D is inferred from
    the inputs. The parameters are in `layers_<l>`, under the names that the cell gives
    them; those of the backward direction are in `backward_layers_<l>`. To shard a
    parameter, use an initializer made by `flax.linen.with_partitioning`.

    Attributes:
        cell: a `scanrnn.cells.Cell`, or a list with one for each layer; or a Flax cell:
            a `flax.linen.RNNCellBase`, or a module with its methods. A Flax cell
            already has its sizes, dtypes and initializers, so the fields for these are
            refused. Its output may be any pytree of arrays.
        time_major: the inputs are `[T, ..., D]` and not `[..., T, D]`.
        return_carry: also return the last carry.
        reverse: run from the last step to the first.
        keep_order: with `reverse`, return the outputs in the order of the inputs.
        unroll: see `scanrnn.scan`.
        variable_axes: for a Flax cell: by collection that its steps write to, the axis
            on which the steps are stacked, such as ``{"intermediates": 0}``.
        variable_broadcast: the collections that all steps share.
        variable_carry: the collections that are carried from step to step.
        split_rngs: by stream, whether each step gets its own key. A Flax cell, ours
            with Flax's names included, gets no other stream.
        features: H, the size of the carry, or a list with one for each layer.
        deterministic: True for no noise, False for noise. With None, the default, a
            layer with dropout or noise needs the argument of the call.
        **options: `num_layers`, `bidirectional`, `residual`, `highway`, `dropout`,
            `param_dtype`, `carry_dtype`, `zero_padding`, `implementation`, `wavefront`,
            `scheme`, `kernel_init`, `recurrent_kernel_init`, `bias_init`: see
            `scanrnn.nnx.RNN`.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.gru(norm="ba2016")
        >>> rnn = scanrnn.linen.RNN(cell, features=5, num_layers=2)
        >>> xs = jnp.ones([2, 7, 3])
        >>> ys, variables = rnn.init_with_output(jax.random.key(0), xs)
        >>> ys.shape, variables["params"]["layers_0"]["recurrent_kernel"].shape
        ((2, 7, 5), (5, 15))
    """

    cell: Cell | Sequence[Cell] | nn.RNNCellBase | nn.Module
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int | bool = 1
    variable_axes: Mapping[str, int] = FrozenDict()
    variable_broadcast: Any = "params"
    variable_carry: Any = False
    split_rngs: Mapping[Any, bool] = FrozenDict({"params": False})
    features: int | Sequence[int] | None = None

    @nn.nowrap
    def cells_and_features(self) -> tuple[Any, Any]:
        """The fields `cell` and `features`."""
        return self.cell, self.features
