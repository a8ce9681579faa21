"""What the steps of slices cost, and when slices divide the operands of a product.

The numbers are rounded from times of LSTMs and GRUs with 128 to 1024 features on an
H200.
"""

from __future__ import annotations

# Seconds of a step, of an exchange, and of one in which slices add their results.
OF_A_STEP, OF_AN_EXCHANGE, OF_A_SUM = 5e-7, 1.2e-6, 2.2e-6
# Numbers of operands that a program reads and multiplies in a second, whatever their
# dtype, and bytes of matrices.
OF_OPERANDS, OF_MATRICES = 9e9, 4.5e10
# How many bytes a program must read less, so that it pays to divide the operands of a
# product. On an H200 a step that read 192 KB less took 6.8 microseconds less (LSTM,
# bfloat16, 64 examples, 1024 features), and with 96 KB less 0.8 (float32, 64, 512).
# With 48 KB less it took 0.7 more (bfloat16, 64, 512), and with 36 KB less also 0.7
# more (GRU, bfloat16, 16, 768).
LEAST_SAVING = 64 * 2**10


def columns(operands: int, examples: int, split: int) -> int:
    """The rows of operands that a program multiplies: all, or those of one operand.

    If it multiplies all, their number is rounded up to a power of two of operands.
    """
    return examples if split > 1 else (1 << (operands - 1).bit_length()) * examples


def split_of(operands: int, examples: int, row: int, slices: int) -> int:
    """Between how many slices the operands of a product are divided (split-K).

    If they are divided, each slice reads one operand, and multiplies it by the columns
    of as many slices as there are operands. These add their results: one more exchange.

    Args:
      operands: the arrays on the left of the product, such as cotangents of gates.
      examples: the examples of a program.
      row: the bytes of an example of an operand.
      slices: the number of slices.
    """
    saved = (columns(operands, examples, 1) - examples) * row
    pays = saved >= LEAST_SAVING and slices % operands == 0
    return operands if pays else 1


def product(operands: int, examples: int, length: int, split: int) -> float:
    """The seconds of a product, without its first exchange and its matrix.

    `length` is the number of features of an operand.
    """
    read = columns(operands, examples, split) * length / OF_OPERANDS
    return read + (OF_A_SUM if split > 1 else 0.0)
