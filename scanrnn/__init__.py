"""scanrnn: write one time step as ordinary JAX; it runs like a recurrent kernel."""

from scanrnn._allocator import tune_allocator as tune_allocator
from scanrnn._scan import scan as scan

__version__ = "0.1.0.dev0"
