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
from scanrnn.cells._deltanet import DeltaNetCarry as DeltaNetCarry
from scanrnn.cells._deltanet import deltanet as deltanet
from scanrnn.cells._deltanet import gated_deltanet as gated_deltanet
from scanrnn.cells._dropout import dropout as dropout
from scanrnn.cells._elman import ElmanCarry as ElmanCarry
from scanrnn.cells._elman import elman as elman
from scanrnn.cells._gated import GateOptions as GateOptions
from scanrnn.cells._gla import GLACarry as GLACarry
from scanrnn.cells._gla import gla as gla
from scanrnn.cells._gru import GRUCarry as GRUCarry
from scanrnn.cells._gru import gru as gru
from scanrnn.cells._highway import highway as highway
from scanrnn.cells._indrnn import IndRNNCarry as IndRNNCarry
from scanrnn.cells._indrnn import indrnn as indrnn
from scanrnn.cells._integration import Multiplicative as Multiplicative
from scanrnn.cells._learned_carry import learned_carry as learned_carry
from scanrnn.cells._lru import LRUCarry as LRUCarry
from scanrnn.cells._lru import lru as lru
from scanrnn.cells._lstm import LSTMCarry as LSTMCarry
from scanrnn.cells._lstm import lstm as lstm
from scanrnn.cells._mamba2 import Mamba2Carry as Mamba2Carry
from scanrnn.cells._mamba2 import mamba2 as mamba2
from scanrnn.cells._mgu import MGUCarry as MGUCarry
from scanrnn.cells._mgu import mgu as mgu
from scanrnn.cells._mingru import MinGRUCarry as MinGRUCarry
from scanrnn.cells._mingru import mingru as mingru
from scanrnn.cells._minlstm import MinLSTMCarry as MinLSTMCarry
from scanrnn.cells._minlstm import minlstm as minlstm
from scanrnn.cells._mlstm import MLSTMCarry as MLSTMCarry
from scanrnn.cells._mlstm import mlstm as mlstm
from scanrnn.cells._multiplicative_lstm import (
    multiplicative_lstm as multiplicative_lstm,
)
from scanrnn.cells._qrnn import QRNNCarry as QRNNCarry
from scanrnn.cells._qrnn import QRNNWindowCarry as QRNNWindowCarry
from scanrnn.cells._qrnn import qrnn as qrnn
from scanrnn.cells._residual import residual as residual
from scanrnn.cells._rglru import RGLRUCarry as RGLRUCarry
from scanrnn.cells._rglru import rglru as rglru
from scanrnn.cells._rhn import RHNCarry as RHNCarry
from scanrnn.cells._rhn import rhn as rhn
from scanrnn.cells._rwkv7 import RWKV7Carry as RWKV7Carry
from scanrnn.cells._rwkv7 import rwkv7 as rwkv7
from scanrnn.cells._schemes import SCHEMES as SCHEMES
from scanrnn.cells._schemes import chrono as chrono
from scanrnn.cells._slstm import SLSTMCarry as SLSTMCarry
from scanrnn.cells._slstm import slstm as slstm
from scanrnn.cells._sru import SRUCarry as SRUCarry
from scanrnn.cells._sru import sru as sru
from scanrnn.cells._ugrnn import UGRNNCarry as UGRNNCarry
from scanrnn.cells._ugrnn import ugrnn as ugrnn
from scanrnn.cells._weight_drop import weight_drop as weight_drop
from scanrnn.cells._zoneout import zoneout as zoneout


def __getattr__(name: str) -> object:
    """Say how a cell is written; it is a function, not a class."""
    small = name.lower()
    hint = f"write scanrnn.cells.{small}(...)" if small in globals() else "see dir()"
    raise AttributeError(f"module 'scanrnn.cells' has no attribute {name!r}; {hint}")
