"""Weights of stacked layers, by our names: the common form of all libraries."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx as flax_nnx

from scanrnn import nnx
from scanrnn.cells import Cell
from scanrnn.cells._cell import param_types
from scanrnn.interop import _kinds


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """A cell, and the weights of stacked layers with this cell.

    Every `scanrnn.interop.from_...` returns one, and every `to_...` takes one.

    Args:
        cell: the cell of every layer.
        layers: for each layer a list of its directions: one, or forward and backward. A
            direction is a dict of NumPy or JAX arrays, with the names that `cell.init`
            uses.
        options: keyword arguments of `scanrnn.nnx.RNN` with which `layer` makes the
            layer: those of the source that no weights contain.

    Raises:
        TypeError: if `cell` is not a `scanrnn.cells.Cell`.
        ValueError: if there is no layer, if the layers have different numbers of
            directions, or if an array is missing or has a wrong shape.

    Example:
        >>> import jax, scanrnn
        >>> from scanrnn.interop import Weights
        >>> cell = scanrnn.cells.lstm()
        >>> params = cell.init(jax.random.key(0), in_features=3, hidden_features=5)
        >>> weights = Weights(cell, [[params]])
        >>> weights.in_features, weights.hidden_features, weights.bidirectional
        (3, 5, False)
        >>> layer = weights.layer(time_major=True)
        >>> layer(jax.numpy.ones([7, 2, 3])).shape
        (7, 2, 5)
        >>> Weights.of(layer).layers[0][0]["bias"].shape
        (20,)
    """

    cell: Cell
    layers: Sequence[Sequence[Mapping[str, Any]]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        """Raise for weights that no layer can have."""
        if not isinstance(self.cell, Cell):
            raise TypeError(
                "Weights: cell must be a scanrnn.cells.Cell, got "
                f"{type(self.cell).__name__}; for one of Flax see interop.from_nnx"
            )
        counts = {len(directions) for directions in self.layers}
        if counts not in ({1}, {2}):
            raise ValueError(
                f"Weights: the layers have {sorted(counts)} directions, want one for "
                "all, or two for all, and at least one layer"
            )
        for index, directions in enumerate(self.layers):
            for params in directions:
                self._check(index, params)

    def _check(self, index, params):
        """Raise ValueError unless `params` fit the cell and the other layers."""
        if "kernel" not in self.layers[0][0] or not hasattr(self.cell, "sizes"):
            return  # a user's own cell may not tell its sizes
        wanted = param_types(self.cell, *self._features(index))
        shapes = {name: tuple(value.shape) for name, value in params.items()}
        if shapes != {name: value.shape for name, value in wanted.items()}:
            raise ValueError(
                f"Weights: layer {index} has {shapes}, want "
                f"{ {name: value.shape for name, value in wanted.items()} }"
            )

    def _features(self, index):
        """The sizes of the inputs and of the carry of one layer."""
        cell: Any = self.cell
        if not hasattr(cell, "sizes"):
            raise ValueError(
                f"Weights: {_kinds.called(cell)} does not tell its sizes; make the "
                "layer with scanrnn.nnx.RNN, and call put_into(layer)"
            )
        in_features, hidden_features = cell.sizes(self.layers[0][0])
        if index:
            directions = 2 if self.bidirectional else 1
            in_features = directions * cell.out_features(hidden_features)
        return in_features, hidden_features

    @property
    def num_layers(self) -> int:
        """L, the number of layers."""
        return len(self.layers)

    @property
    def bidirectional(self) -> bool:
        """Whether every layer runs in both directions."""
        return len(self.layers[0]) == 2

    @property
    def in_features(self) -> int:
        """D, the size of an input of the first layer."""
        return self._features(0)[0]

    @property
    def hidden_features(self) -> int:
        """H, the size of the carry."""
        return self._features(0)[1]

    @classmethod
    def of(cls, layer: nnx.RNN | flax_nnx.RNNCellBase) -> "Weights":
        """The weights of a layer of `scanrnn.nnx`, or of a cell for one step.

        They do not say whether the layer is time-major: `Weights.layer` takes
        `time_major` as an option.

        Args:
            layer: of one of our cells; or a cell, such as `scanrnn.nnx.LSTMCell`.

        Returns:
            Its weights. The arrays are not copied.

        Raises:
            TypeError: for anything else than such a layer.
            ValueError: for a layer with residual or highway connections, which are not
                part of its cell, or one that runs backwards only.
        """
        # Layers and cells for one step of ours have both; those of Flax do not.
        cell, stack = (getattr(layer, name, None) for name in ("cell", "stack"))
        if not isinstance(cell, Cell) or stack is None:
            raise TypeError(
                f"Weights.of: got {type(layer).__name__}, want a layer of scanrnn.nnx "
                "with one cell of scanrnn.cells for all layers; for a layer of Flax, "
                "interop.from_nnx, and for one of scanrnn.linen, Weights.from_tree"
            )
        for name in ("residual", "highway"):
            if getattr(layer, name, False):
                raise ValueError(
                    f"Weights.of: the layer has {name}={getattr(layer, name)!r}, which "
                    "no other library's layer has; save it as safetensors, or export "
                    "it with scanrnn.serving"
                )
        if getattr(layer, "reverse", False):
            raise ValueError(
                "Weights.of: the layer has reverse=True, which weights do not contain; "
                "give a layer that reads forwards, and reverse the sequences or give "
                "Weights.layer(reverse=True) where the weights are used"
            )
        return cls(cell, [[d.params for d in ds] for ds in stack])

    def layer(self, **options: Any) -> nnx.RNN:
        """A layer of `scanrnn.nnx` with these weights.

        Args:
            **options: keyword arguments of `scanrnn.nnx.RNN` that do not describe the
                weights, such as `time_major`. They come before those in `options`.

        Returns:
            The layer. Its parameters have the dtype of the first kernel, or float32 for
            float64 without JAX's x64 mode, unless `options` has another `param_dtype`.

        Raises:
            TypeError: for an option that describes the weights, or that no layer has.

        Example:
            >>> import jax, scanrnn
            >>> cell = scanrnn.cells.gru()
            >>> params = cell.init(jax.random.key(0), 3, 5)
            >>> layer = scanrnn.interop.Weights(cell, [[params]]).layer()
            >>> layer(jax.numpy.ones([2, 7, 3])).shape
            (2, 7, 5)
        """
        names = "cell", "in_features", "hidden_features", "num_layers", "bidirectional"
        known = {name: getattr(self, name) for name in names}
        if twice := sorted(known.keys() & options.keys()):
            raise TypeError(
                f"Weights.layer: {twice[0]} is known from the weights; leave it out"
            )
        kernel = self.layers[0][0]["kernel"]
        # Without its x64 mode, JAX makes float32 of float64.
        dtype = jax.dtypes.canonicalize_dtype(kernel.dtype)
        defaults = {"param_dtype": dtype, "rngs": flax_nnx.Rngs(0)}
        layer = nnx.RNN(**known, **{**defaults, **self.options, **options})
        self.put_into(layer)
        return layer

    @classmethod
    def from_tree(cls, cell: Cell, params: Mapping[str, Any]) -> "Weights":
        """The weights of a layer of `scanrnn.linen`.

        Args:
            cell: the cell of the layer.
            params: the parameters of the layer: `layers_<l>`, and
                `backward_layers_<l>` if it is bidirectional.

        Returns:
            The weights.

        Raises:
            ValueError: if the names or the arrays do not fit the cell.

        Example:
            >>> import jax, jax.numpy as jnp, scanrnn
            >>> rnn = scanrnn.linen.GRU(5, bidirectional=True)
            >>> variables = rnn.init(jax.random.key(0), jnp.ones([2, 7, 3]))
            >>> params, cell = variables["params"], scanrnn.cells.gru()
            >>> weights = scanrnn.interop.Weights.from_tree(cell, params)
            >>> weights.bidirectional, sorted(weights.tree()) == sorted(params)
            (True, True)
        """
        both = "backward_layers_0" in params
        names = ["layers", "backward_layers"] if both else ["layers"]
        count = len(params) // len(names)
        wanted = {f"{name}_{index}" for name in names for index in range(count)}
        if not count or set(params) != wanted:
            raise ValueError(
                f"from_tree: params has the entries {sorted(params)}, want layers_0 "
                "and so on, and as many backward_layers_0 or none"
            )
        return cls(cell, [[params[f"{n}_{k}"] for n in names] for k in range(count)])

    def tree(self) -> dict[str, Mapping[str, Any]]:
        """The parameters of a layer of `scanrnn.linen` with these weights.

        Returns:
            `{"layers_0": {"kernel": ...}, ...}`; see `from_tree`.
        """
        return {
            f"{name}_{index}": params
            for index, directions in enumerate(self.layers)
            for name, params in zip(
                ("layers", "backward_layers"), directions, strict=False
            )
        }

    def put_into(self, layer: nnx.RNN) -> None:
        """Put these weights into a layer of `scanrnn.nnx`, cast to its dtype.

        Args:
            layer: a layer with the same sizes and the same cell. Options for training,
                such as dropout, may differ.

        Raises:
            ValueError: if the cell of the layer has other equations, or the weights of
                the layer have other names or shapes.
        """
        for place in layer.places:
            if not _kinds.alike(self.cell, place.cell):
                raise ValueError(
                    f"put_into: the weights are those of {_kinds.called(self.cell)}, a "
                    f"layer has {_kinds.called(place.cell)}, with other equations; "
                    "make the layer of the same cell, as Weights.layer() does"
                )
        theirs = [layer.layers, *([layer.backward_layers] * layer.bidirectional)]
        ours = [list(params) for params in zip(*self.layers, strict=True)]
        shapes = [_shapes(one) for one in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                "put_into: the weights have the names and shapes (by direction, then "
                f"layer) {shapes[0]}, the layer has {shapes[1]}"
            )
        for mine, their in zip(ours, theirs, strict=True):
            for source, target in zip(mine, their, strict=True):
                for name, param in target.items():
                    param[...] = jax.numpy.asarray(source[name], param[...].dtype)


def with_zero_biases(where: str, weights: Any) -> Weights:
    """The weights without dropout, and with zeros for biases that are left out.

    Args:
        where: name of the public function, for messages.
        weights: what it was given.

    Raises:
        TypeError: unless it is a `Weights`.
    """
    if not isinstance(weights, Weights):
        raise TypeError(
            f"{where}: weights is of type {type(weights).__name__}, want "
            "interop.Weights; Weights.of(layer) are those of a layer of scanrnn.nnx, "
            "and Weights.from_tree(cell, params) of one of scanrnn.linen"
        )
    # Dropout changes nothing that another library could keep.
    cell = _kinds.bare(weights.cell)
    return _kinds.with_zero_biases(dataclasses.replace(weights, cell=cell))


def _shapes(directions):
    return [
        [{name: tuple(a.shape) for name, a in sorted(layer.items())} for layer in one]
        for one in directions
    ]
