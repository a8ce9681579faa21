"""Cells: one time step of a recurrent network, as pure functions.

A cell is written as its paper writes it, with its GEMMs in the step. It runs under
`jax.lax.scan`, and fast under `scanrnn.scan`.
"""

from scanrnn.cells._cell import Cell as Cell
from scanrnn.cells._elman import ElmanCarry as ElmanCarry
from scanrnn.cells._elman import elman as elman
from scanrnn.cells._gru import GRUCarry as GRUCarry
from scanrnn.cells._gru import gru as gru
from scanrnn.cells._lstm import LSTMCarry as LSTMCarry
from scanrnn.cells._lstm import lstm as lstm
from scanrnn.cells._residual import residual as residual
