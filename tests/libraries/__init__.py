"""Other libraries' cells, given the parameters of ours.

A file holds `LAYERS`: by the name of a row of `cell_table`, a differentiable function
of our params, xs `[T, B, D]` and our carry, that runs the library's own layer or cell,
and returns the last carry as a tuple in our order, and the outputs `[T, B, H]`.
"""

from scanrnn.interop import Weights


def weights(cell, params):
    """One layer of a cell in one direction."""
    return Weights(cell, [[params]])
