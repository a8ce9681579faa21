"""Cells: one time step of a recurrent network, as pure functions.

A cell is written as its paper writes it, with its GEMMs in the step. It runs under
`jax.lax.scan`, and fast under `scanrnn.scan`.
"""

from scanrnn.cells._cell import Cell as Cell
from scanrnn.cells._cell import Noise as Noise
from scanrnn.cells._conv import ConvOptions as ConvOptions
from scanrnn.cells._conv_gru import ConvGRUCarry as ConvGRUCarry
from scanrnn.cells._conv_gru import conv_gru as conv_gru
from scanrnn.cells._conv_lstm import ConvLSTMCarry as ConvLSTMCarry
from scanrnn.cells._conv_lstm import conv_lstm as conv_lstm
from scanrnn.cells._dropout import dropout as dropout
from scanrnn.cells._elman import ElmanCarry as ElmanCarry
from scanrnn.cells._elman import elman as elman
from scanrnn.cells._gated import GateOptions as GateOptions
from scanrnn.cells._gru import GRUCarry as GRUCarry
from scanrnn.cells._gru import gru as gru
from scanrnn.cells._highway import highway as highway
from scanrnn.cells._integration import Multiplicative as Multiplicative
from scanrnn.cells._learned_carry import learned_carry as learned_carry
from scanrnn.cells._lstm import LSTMCarry as LSTMCarry
from scanrnn.cells._lstm import lstm as lstm
from scanrnn.cells._residual import residual as residual
from scanrnn.cells._schemes import SCHEMES as SCHEMES
from scanrnn.cells._schemes import chrono as chrono
from scanrnn.cells._weight_drop import weight_drop as weight_drop
from scanrnn.cells._zoneout import zoneout as zoneout
