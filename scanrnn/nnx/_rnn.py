"""The recurrent layer: cells, one above the other, scanned over time."""

import functools
import operator
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn._scan import scan
from scanrnn.cells import Cell
from scanrnn.cells import residual as residual_cell
from scanrnn.nnx import _checks, _foreign


class LayerOptions(TypedDict, total=False):
    """The keyword arguments of `RNN` that its subclasses pass on."""

    num_layers: int
    residual: bool
    param_dtype: Any
    carry_dtype: Any
    time_major: bool
    return_carry: bool
    reverse: bool
    keep_order: bool
    unroll: int | bool
    implementation: str | None
    kernel_init: nnx.Initializer | None
    recurrent_kernel_init: nnx.Initializer | None
    bias_init: nnx.Initializer | None
    rngs: nnx.Rngs


class RNN(nnx.Module):
    r"""Recurrent layers over a sequence, made of any cell.

    .. math::
        (s_t^l, x_t^{l+1}) = \mathrm{cell}_l(s_{t-1}^l, x_t^l), \quad l = 1..L

    It takes the call arguments of `flax.nnx.RNN` with their meaning. It holds nothing
    but its `nnx.Param`s, so it is a plain pytree to `jax.jit`, `jax.grad`, `jax.vmap`
    and `jax.export`, as well as to the transforms of NNX.

    The weights are `layers[l]`, by the names that the cell gives them.

    Args:
        cell: a `scanrnn.cells.Cell`, or one of Flax's own (a `flax.nnx.RNNCellBase`
            that keeps nothing but weights). That one has its sizes, dtypes and weights
            in it already, so the arguments about them are refused.
        in_features: D, the size of the last axis of the inputs.
        hidden_features: H, the size of the last axis of the outputs.
        num_layers: L, how many layers lie above each other.
        residual: add its input to the output of every layer whose input has H
            features: of all layers where D = H, else of all but the first.
        param_dtype: of the weights.
        carry_dtype: of the carry; None for float32, or wider if `param_dtype` is.
        time_major: the inputs are `[T, ..., D]` and not `[..., T, D]`.
        return_carry: return the last carry too.
        reverse: go through time backwards.
        keep_order: where `reverse`, give the outputs in the order of the inputs and
            not in the order in which they were computed.
        unroll: see `scanrnn.scan`.
        implementation: see `scanrnn.scan`.
        kernel_init: draws the input weights `[D, G*H]` of a layer; None for the
            cell's own choice, LeCun normal. Likewise the next two.
        recurrent_kernel_init: draws the recurrent weights `[H, H]` of a gate;
            orthogonal.
        bias_init: draws the biases `[G*H]` of a layer; zeros.
        rngs: its `params` stream draws the weights. It is not kept, so a random
            `carry_init` of a Flax cell draws the same carry at every call that is
            given no `rngs` of its own.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a size is less than one, or `implementation` is unknown.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> cell = scanrnn.cells.gru(norm="ba2016")
        >>> rnn = scanrnn.nnx.RNN(cell, 3, 5, num_layers=2, rngs=nnx.Rngs(0))
        >>> rnn(jnp.ones([2, 7, 3])).shape
        (2, 7, 5)
        >>> rnn.layers[0]["recurrent_kernel"].shape
        (5, 15)
    """

    def __init__(
        self,
        cell: Cell | nnx.RNNCellBase,
        in_features: int | None = None,
        hidden_features: int | None = None,
        *,
        num_layers: int = 1,
        residual: bool = False,
        param_dtype: Any = jnp.float32,
        carry_dtype: Any = None,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int | bool = 1,
        implementation: str | None = None,
        kernel_init: nnx.Initializer | None = None,
        recurrent_kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs | None = None,
    ):
        """Draw the weights; see the class."""
        self.cell: Any = cell
        self.in_features: Any = in_features
        self.hidden_features: Any = hidden_features
        self.num_layers = num_layers
        self.residual = residual
        self.param_dtype = param_dtype
        self.carry_dtype = carry_dtype
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.unroll = _checks.check_scan_options(implementation, unroll)
        self.implementation = implementation
        given = {
            "kernel_init": kernel_init,
            "recurrent_kernel_init": recurrent_kernel_init,
            "bias_init": bias_init,
        }
        initializers = {k: v for k, v in given.items() if v is not None}
        if isinstance(cell, nnx.RNNCellBase):
            _foreign.check(self, initializers)
            self.layers = nnx.List([])
            return
        stream = _checks.check_constructor(self, rngs)
        # A NumPy integer would be a leaf of this module's pytree, an int is not.
        for name in ("in_features", "hidden_features", "num_layers"):
            setattr(self, name, operator.index(getattr(self, name)))
        if carry_dtype is None:
            self.carry_dtype = jnp.promote_types(jnp.float32, param_dtype)
        self.layers = nnx.List(
            self._draw(index, stream(), initializers)
            for index in range(self.num_layers)
        )

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Any:
        """Run the layers over a sequence.

        Args:
            inputs: `[..., T, D]`, or `[T, ..., D]` if time-major, with any number of
                batch axes, none included; of a convolutional cell `[..., T, *spatial,
                C]`.
            initial_carry: the carry before the first step, as `return_carry` gives it
                (a tuple of one per layer where there are several); None for zeros.
            seq_lengths: None. It is here because `flax.nnx.Bidirectional` passes it;
                sequences of different lengths come later.
            return_carry: overrides the constructor's argument; likewise the next
                three.
            time_major: see the class.
            reverse: see the class.
            keep_order: see the class.
            rngs: its `carry` stream draws the initial carry of a Flax cell, None for
                the same at every call. Our own cells start at zeros and need none.

        Returns:
            The outputs `[..., T, H]`, or `[T, ..., H]` if time-major, in the cell's
            `dtype` if it has one and in the carry's if not. With `return_carry`, a
            pair: the last carry (a tuple of one per layer where there are several),
            and the outputs.

        Raises:
            TypeError: if `initial_carry` has the wrong structure or dtype, or `rngs`
                the wrong type.
            ValueError: if `inputs` or `initial_carry` has the wrong shape, or
                `seq_lengths` is not None.
        """
        _checks.check_call(seq_lengths, rngs)
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order

        inputs = jnp.asarray(inputs)
        feature_axes = _foreign.num_feature_axes(self.cell)
        in_features = self.in_features or _foreign.num_features(self.cell)
        _checks.check_inputs(inputs, in_features, feature_axes)
        time_axis = 0 if time_major else inputs.ndim - feature_axes - 1
        ys = jnp.moveaxis(inputs, time_axis, 0)
        # One step of the inputs, for its type. Not ys[0]: there may be no steps.
        carries = self._initial_carries(jnp.sum(ys, axis=0), initial_carry, rngs)
        last = []
        for step, carry in zip(self._steps(), carries, strict=True):
            carry, ys = scan(
                step,
                carry,
                ys,
                reverse=reverse,
                unroll=self.unroll,
                implementation=self.implementation,
            )
            last.append(carry)
        if reverse and not keep_order:
            ys = jnp.flip(ys, axis=0)
        ys = jnp.moveaxis(ys, 0, time_axis)
        dtype = self.cell.dtype if isinstance(self.cell, Cell) else None
        if dtype is not None:
            ys = ys.astype(dtype)
        if not return_carry:
            return ys
        return (last[0] if self.num_layers == 1 else tuple(last)), ys

    def _draw(self, index, key, initializers):
        """The weights of a layer."""
        params = self._cell(index).init(
            key,
            self._in_features(index),
            self.hidden_features,
            self.param_dtype,
            **initializers,
        )
        return nnx.Dict({name: nnx.Param(value) for name, value in params.items()})

    def _in_features(self, index):
        """The features that a layer is given: D, then those of the layer below."""
        if index == 0:
            return self.in_features
        return self.cell.out_features(self.hidden_features)

    def _cell(self, index):
        """The cell of a layer, inside its residual connection if it has one."""
        out_features = self.cell.out_features(self.hidden_features)
        same = self._in_features(index) == out_features
        return residual_cell(self.cell) if self.residual and same else self.cell

    def _steps(self):
        """The step function of every layer, with its weights in it."""
        if isinstance(self.cell, nnx.RNNCellBase):
            return [self.cell]
        return [
            functools.partial(self._cell(index).step, self._params(index))
            for index in range(self.num_layers)
        ]

    def _params(self, index):
        return {name: param[...] for name, param in self.layers[index].items()}

    def _initial_carries(self, x, given, rngs):
        """The carry of every layer: the ones given, checked, or the cell's own."""
        if isinstance(self.cell, nnx.RNNCellBase):
            if given is None:
                return [_foreign.initial_carry(self.cell, x, rngs)]
            return [_foreign.checked_carry(self.cell, x, given)]
        zeros = []
        for index in range(self.num_layers):
            zeros.append(
                self.cell.initial_carry(self._params(index), x, self.carry_dtype)
            )
            # Like the input of the next layer.
            out_features = self.cell.out_features(self.hidden_features)
            x = jnp.broadcast_to(x[..., :1], (*x.shape[:-1], out_features))
        if given is None:
            return zeros
        wanted = zeros[0] if self.num_layers == 1 else tuple(zeros)
        given = _checks.check_initial_carry(given, wanted)
        return [given] if self.num_layers == 1 else list(given)
