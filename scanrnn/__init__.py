"""scanrnn: write one time step as ordinary JAX; it runs like a recurrent kernel."""

from scanrnn import cells as cells
from scanrnn import interop as interop
from scanrnn import linen as linen
from scanrnn import nnx as nnx
from scanrnn import serving as serving
from scanrnn._accelerate import accelerate as accelerate
from scanrnn._advise import Advice as Advice
from scanrnn._advise import advise as advise
from scanrnn._allocator import tune_allocator as tune_allocator
from scanrnn._scan import plan as plan
from scanrnn._scan import scan as scan
from scanrnn.machines import Machine as Machine
from scanrnn.planner import Options as Options
from scanrnn.planner import Plan as Plan

__version__ = "0.1.0.dev0"
