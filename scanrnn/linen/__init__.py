"""Flax Linen layers over `scanrnn.cells` and `scanrnn.scan`."""

from scanrnn.linen._bidirectional import Bidirectional as Bidirectional
from scanrnn.linen._layers import GRU as GRU
from scanrnn.linen._layers import LRU as LRU
from scanrnn.linen._layers import LSTM as LSTM
from scanrnn.linen._layers import MGU as MGU
from scanrnn.linen._layers import MLSTM as MLSTM
from scanrnn.linen._layers import QRNN as QRNN
from scanrnn.linen._layers import RGLRU as RGLRU
from scanrnn.linen._layers import RHN as RHN
from scanrnn.linen._layers import SLSTM as SLSTM
from scanrnn.linen._layers import SRU as SRU
from scanrnn.linen._layers import UGRNN as UGRNN
from scanrnn.linen._layers import ConvGRU as ConvGRU
from scanrnn.linen._layers import ConvLSTM as ConvLSTM
from scanrnn.linen._layers import Elman as Elman
from scanrnn.linen._layers import IndRNN as IndRNN
from scanrnn.linen._layers import MinGRU as MinGRU
from scanrnn.linen._layers import MinLSTM as MinLSTM
from scanrnn.linen._layers import MultiplicativeLSTM as MultiplicativeLSTM
from scanrnn.linen._rnn import RNN as RNN
