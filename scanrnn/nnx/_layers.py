"""Layers of each cell, with the name of the cell."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from scanrnn import cells
from scanrnn.layers import LayerOptions, named_class, own_options
from scanrnn.nnx._rnn import RNN


class CellLayer(RNN):
    """Layers of the cells that one factory makes; see `RNN`."""

    _make: ClassVar[Callable[..., cells.Cell]]

    def __init__(self, in_features: int, hidden_features: int, **options: Any):
        """Draw the weights; see the class."""
        names = LayerOptions.__annotations__
        own = own_options(self, names, options, "scanrnn.nnx.RNN")
        cell = type(self)._make(**options)
        super().__init__(cell, in_features, hidden_features, **own)


_DOC = """Layers of the cells of `scanrnn.cells.{factory}`.

The equations, options and carry are those of the cell. For all other arguments see
`RNN`.

Args:
    in_features: D, the size of the last axis of the inputs.
    hidden_features: H, the size of the carry, or a list with one for each layer.
    **options: options of `scanrnn.cells.{factory}`, and keyword arguments of `RNN`;
        `rngs` is required.

Raises:
    TypeError: if an option does not exist, or an argument has the wrong type.
    ValueError: if an option has an unknown value, or a size is less than 1.

Example:
    >>> import jax.numpy as jnp, scanrnn
    >>> from flax import nnx
    >>> rnn = scanrnn.nnx.{name}(5, 5, {more}rngs=nnx.Rngs(0))
    >>> rnn(jnp.ones([2, 7, {spatial}5]), seq_lengths=jnp.array([7, 4])).shape
    (2, 7, {spatial}5)
"""


_layers_of = functools.partial(named_class, CellLayer, _DOC)

Elman = _layers_of("Elman", cells.elman)
LSTM = _layers_of("LSTM", cells.lstm)
ConvLSTM = _layers_of("ConvLSTM", cells.conv_lstm, "kernel_size=3, ", "4, ")
ConvGRU = _layers_of("ConvGRU", cells.conv_gru, "kernel_size=3, ", "4, ")
GRU = _layers_of("GRU", cells.gru)
MGU = _layers_of("MGU", cells.mgu)
UGRNN = _layers_of("UGRNN", cells.ugrnn)
IndRNN = _layers_of("IndRNN", cells.indrnn)
MultiplicativeLSTM = _layers_of("MultiplicativeLSTM", cells.multiplicative_lstm)
RHN = _layers_of("RHN", cells.rhn)
SRU = _layers_of("SRU", cells.sru)
QRNN = _layers_of("QRNN", cells.qrnn)
MinGRU = _layers_of("MinGRU", cells.mingru)
MinLSTM = _layers_of("MinLSTM", cells.minlstm)
LRU = _layers_of("LRU", cells.lru)
RGLRU = _layers_of("RGLRU", cells.rglru)
SLSTM = _layers_of("SLSTM", cells.slstm)
MLSTM = _layers_of("MLSTM", cells.mlstm)
GLA = _layers_of("GLA", cells.gla)
DeltaNet = _layers_of("DeltaNet", cells.deltanet)
GatedDeltaNet = _layers_of("GatedDeltaNet", cells.gated_deltanet)
RWKV7 = _layers_of("RWKV7", cells.rwkv7)
Mamba2 = _layers_of("Mamba2", cells.mamba2)
