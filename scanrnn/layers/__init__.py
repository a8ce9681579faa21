"""What both kinds of Flax layers share: sequences, stacks, errors at the door."""

from scanrnn.layers._call import Call as Call
from scanrnn.layers._call import Spec as Spec
from scanrnn.layers._call import call_layers as call_layers
from scanrnn.layers._call import make_call as make_call
from scanrnn.layers._call import run_own as run_own
from scanrnn.layers._checks import check_cell as check_cell
from scanrnn.layers._checks import check_foreign as check_foreign
from scanrnn.layers._checks import check_layers as check_layers
from scanrnn.layers._checks import check_scan_options as check_scan_options
from scanrnn.layers._checks import is_recurrent as is_recurrent
from scanrnn.layers._directions import joined as joined
from scanrnn.layers._foreign import first_carries as first_carries
from scanrnn.layers._foreign import run_foreign as run_foreign
from scanrnn.layers._options import LayerOptions as LayerOptions
from scanrnn.layers._options import cell_options as cell_options
from scanrnn.layers._options import check_options as check_options
from scanrnn.layers._stack import Layer as Layer
from scanrnn.layers._stack import Place as Place
from scanrnn.layers._stack import places as places
from scanrnn.layers._weights import FAMILIES as FAMILIES
from scanrnn.layers._weights import draw as draw
from scanrnn.layers._weights import family as family
