"""What both kinds of Flax layers share: sequences, stacks, errors at the door."""

from scanrnn.layers._sequence import blank as blank
from scanrnn.layers._sequence import run as run
from scanrnn.layers._sequence import turn as turn
from scanrnn.layers._spans import Spans as Spans
from scanrnn.layers._spans import spans as spans
from scanrnn.layers._stack import Layer as Layer
from scanrnn.layers._stack import Stacked as Stacked
from scanrnn.layers._stack import history as history
from scanrnn.layers._stack import out_features as out_features
from scanrnn.layers._stack import run_stack as run_stack
from scanrnn.layers._stack import skips as skips
