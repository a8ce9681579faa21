"""Training a recurrent model: data, step, checkpoints, and the loop around them."""

from scanrnn.training._precision import Precision as Precision
from scanrnn.training._step import FAULTS as FAULTS
from scanrnn.training._step import Counts as Counts
from scanrnn.training._step import Metrics as Metrics
from scanrnn.training._step import TrainState as TrainState
from scanrnn.training._step import init_state as init_state
from scanrnn.training._step import make_train_step as make_train_step
