"""What a slice of the features needs from the others: two operations of its step.

Each is an exchange: all slices give a part, and each of them reads all parts.
"""

from __future__ import annotations

from jax.extend.core import Primitive

# A product of all features by the columns of this slice. It is given this slice of each
# operand, and the matrix of the slice (`SlicedMatrix`). A result is a slice of a gate.
# `split`: between how many slices the operands are divided.
product_p = Primitive("product_of_slices")
product_p.multiple_results = True
# The sum, or maximum, of one number for each example and slice.
reduction_p = Primitive("reduction_of_slices")
EXCHANGES = (product_p, reduction_p)


@product_p.def_abstract_eval
def _product(*operands, gates: int, features: int, split: int, dtype, precision):
    del split, precision
    shape = operands[0].shape[0], features
    return [operands[0].update(shape=shape, dtype=dtype, weak_type=False)] * gates


@reduction_p.def_abstract_eval
def _reduction(part, *, name: str):
    del name
    return part
