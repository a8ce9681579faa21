"""One step of each cell, as a module with the name of the cell."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from scanrnn import cells
from scanrnn.layers import named_class, own_options
from scanrnn.nnx._cell import RNNCell


class FamilyCell(RNNCell):
    """One step of the cells that one factory makes; see `RNNCell`."""

    _make: ClassVar[Callable[..., cells.Cell]]

    def __init__(self, in_features: int, hidden_features: int, **options: Any):
        """Draw the weights; see the class."""
        known = inspect.signature(RNNCell.__init__).parameters
        own = own_options(self, known, options, "scanrnn.nnx.RNNCell")
        cell = type(self)._make(**options)
        super().__init__(cell, in_features, hidden_features, **own)


_DOC = """One step of `scanrnn.cells.{factory}`.

The equations, options and carry are those of the cell. For all other arguments see
`RNNCell`.

Args:
    in_features: D, the size of the last axis of an input.
    hidden_features: H, the size of the carry.
    **options: options of `scanrnn.cells.{factory}`, and keyword arguments of `RNNCell`;
        `rngs` is required.

Raises:
    TypeError: if an option does not exist, or an argument has the wrong type.
    ValueError: if an option has an unknown value, or a size is less than 1.

Example:
    >>> import jax.numpy as jnp, scanrnn
    >>> from flax import nnx
    >>> x = jnp.ones([2, {spatial}5])
    >>> cell = scanrnn.nnx.{name}(5, 5, {more}rngs=nnx.Rngs(0))
    >>> carry, y = cell(cell.initialize_carry(x.shape), x)
    >>> y.shape
    (2, {spatial}5)
"""


_cell_of = functools.partial(named_class, FamilyCell, _DOC)

ConvLSTMCell = _cell_of("ConvLSTMCell", cells.conv_lstm, "kernel_size=3, ", "4, ")
ConvGRUCell = _cell_of("ConvGRUCell", cells.conv_gru, "kernel_size=3, ", "4, ")
MGUCell = _cell_of("MGUCell", cells.mgu)
UGRNNCell = _cell_of("UGRNNCell", cells.ugrnn)
IndRNNCell = _cell_of("IndRNNCell", cells.indrnn)
MultiplicativeLSTMCell = _cell_of("MultiplicativeLSTMCell", cells.multiplicative_lstm)
RHNCell = _cell_of("RHNCell", cells.rhn)
SRUCell = _cell_of("SRUCell", cells.sru)
QRNNCell = _cell_of("QRNNCell", cells.qrnn)
MinGRUCell = _cell_of("MinGRUCell", cells.mingru)
MinLSTMCell = _cell_of("MinLSTMCell", cells.minlstm)
LRUCell = _cell_of("LRUCell", cells.lru)
RGLRUCell = _cell_of("RGLRUCell", cells.rglru)
SLSTMCell = _cell_of("SLSTMCell", cells.slstm)
MLSTMCell = _cell_of("MLSTMCell", cells.mlstm)
GLACell = _cell_of("GLACell", cells.gla)
DeltaNetCell = _cell_of("DeltaNetCell", cells.deltanet)
GatedDeltaNetCell = _cell_of("GatedDeltaNetCell", cells.gated_deltanet)
RWKV7Cell = _cell_of("RWKV7Cell", cells.rwkv7)
Mamba2Cell = _cell_of("Mamba2Cell", cells.mamba2)
