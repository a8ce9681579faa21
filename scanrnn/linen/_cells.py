"""One step of each cell, as a module with the name of the cell."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from flax import linen as nn

from scanrnn import cells
from scanrnn.layers import cell_of, named_class
from scanrnn.linen._cell import Step


class FamilyCell(Step):
    """One step of the cells that one factory makes; see `RNNCell`."""

    _make: ClassVar[Callable[..., cells.Cell]]

    features: int

    @nn.nowrap
    def cell_and_features(self) -> tuple[Any, Any]:
        """The cell with the given options, and H."""
        return cell_of(self), self.features


_DOC = """One step of `scanrnn.cells.{factory}`.

Equations, options and carry are those of the cell; everything else is as in `RNNCell`.

Attributes:
    features: H, the size of the carry.
    **options: options of `scanrnn.cells.{factory}`, and fields of `RNNCell`.

Raises:
    TypeError: if a field does not exist; from a call, if one has the wrong type.
    ValueError: from a call, if an option has an unknown value or a size is less than 1.

Example:
    >>> import jax, jax.numpy as jnp, scanrnn
    >>> x, key = jnp.ones([2, {spatial}5]), jax.random.key(0)
    >>> cell = scanrnn.linen.{name}(5{more})
    >>> carry = cell.initialize_carry(key, x.shape)
    >>> variables = cell.init(key, carry, x)
    >>> carry, y = cell.apply(variables, carry, x)
    >>> y.shape
    (2, {spatial}5)
"""


_cell_of = functools.partial(named_class, FamilyCell, _DOC)

ConvGRUCell = _cell_of("ConvGRUCell", cells.conv_gru, ", kernel_size=3", "4, ")
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
