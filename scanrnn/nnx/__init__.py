"""Flax NNX layers over `scanrnn.cells` and `scanrnn.scan`."""

from scanrnn.nnx._bidirectional import Bidirectional as Bidirectional
from scanrnn.nnx._layers import GRU as GRU
from scanrnn.nnx._layers import LRU as LRU
from scanrnn.nnx._layers import LSTM as LSTM
from scanrnn.nnx._layers import MGU as MGU
from scanrnn.nnx._layers import MLSTM as MLSTM
from scanrnn.nnx._layers import QRNN as QRNN
from scanrnn.nnx._layers import RGLRU as RGLRU
from scanrnn.nnx._layers import RHN as RHN
from scanrnn.nnx._layers import SLSTM as SLSTM
from scanrnn.nnx._layers import SRU as SRU
from scanrnn.nnx._layers import UGRNN as UGRNN
from scanrnn.nnx._layers import ConvGRU as ConvGRU
from scanrnn.nnx._layers import ConvLSTM as ConvLSTM
from scanrnn.nnx._layers import Elman as Elman
from scanrnn.nnx._layers import IndRNN as IndRNN
from scanrnn.nnx._layers import MinGRU as MinGRU
from scanrnn.nnx._layers import MinLSTM as MinLSTM
from scanrnn.nnx._layers import MultiplicativeLSTM as MultiplicativeLSTM
from scanrnn.nnx._rnn import RNN as RNN
