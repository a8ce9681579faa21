"""Flax NNX layers over `scanrnn.cells` and `scanrnn.scan`."""

from scanrnn.nnx._layers import GRU as GRU
from scanrnn.nnx._layers import LSTM as LSTM
from scanrnn.nnx._layers import Elman as Elman
from scanrnn.nnx._rnn import RNN as RNN
