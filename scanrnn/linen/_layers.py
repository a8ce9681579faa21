"""Layers of each cell, with the name of the cell."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from flax import linen as nn

from scanrnn import cells
from scanrnn.layers import cell_of, named_class
from scanrnn.linen._rnn import Recurrent


class CellLayer(Recurrent):
    """Layers of the cells that one factory makes; see `RNN`."""

    _make: ClassVar[Callable[..., cells.Cell]]

    features: int | Sequence[int]
    time_major: bool = dataclasses.field(default=False, kw_only=True)
    return_carry: bool = dataclasses.field(default=False, kw_only=True)
    reverse: bool = dataclasses.field(default=False, kw_only=True)
    keep_order: bool = dataclasses.field(default=False, kw_only=True)
    unroll: int | bool = dataclasses.field(default=1, kw_only=True)

    @nn.nowrap
    def cells_and_features(self) -> tuple[Any, Any]:
        """The cell with the given options, and H."""
        return cell_of(self), self.features


_DOC = """Layers of the cells of `scanrnn.cells.{factory}`.

The equations, options and carry are those of the cell. For all other arguments see
`RNN`.

Attributes:
    features: H, the size of the carry, or a list with one for each layer.
    **options: options of `scanrnn.cells.{factory}`, and fields of `RNN`.

Raises:
    TypeError: if a field does not exist; from a call, if one has the wrong type.
    ValueError: from a call, if an option has an unknown value or a size is less than 1.

Example:
    >>> import jax, jax.numpy as jnp, scanrnn
    >>> rnn = scanrnn.linen.{name}(5{more})
    >>> xs, lengths = jnp.ones([2, 7, {spatial}5]), jnp.array([7, 4])
    >>> variables = rnn.init(jax.random.key(0), xs)
    >>> rnn.apply(variables, xs, seq_lengths=lengths).shape
    (2, 7, {spatial}5)
"""


_layers_of = functools.partial(named_class, CellLayer, _DOC)

Elman = _layers_of("Elman", cells.elman)
LSTM = _layers_of("LSTM", cells.lstm)
ConvLSTM = _layers_of("ConvLSTM", cells.conv_lstm, ", kernel_size=3", "4, ")
ConvGRU = _layers_of("ConvGRU", cells.conv_gru, ", kernel_size=3", "4, ")
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
