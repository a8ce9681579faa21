"""Training a recurrent model: data, step, checkpoints, and the loop around them."""

from scanrnn.training._checkpoints import Checkpoints as Checkpoints
from scanrnn.training._config import Config as Config
from scanrnn.training._data import Streams as Streams
from scanrnn.training._data import Vocabulary as Vocabulary
from scanrnn.training._data import load_text as load_text
from scanrnn.training._loop import Outcome as Outcome
from scanrnn.training._loop import train as train
from scanrnn.training._model import CharLM as CharLM
from scanrnn.training._model import generate as generate
from scanrnn.training._model import make_model as make_model
from scanrnn.training._report import layer_plans as layer_plans
from scanrnn.training._step import TrainState as TrainState
from scanrnn.training._step import init_state as init_state
from scanrnn.training._step import make_evaluate as make_evaluate
from scanrnn.training._step import make_train_step as make_train_step
