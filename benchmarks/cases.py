"""What is measured: a cell, its sizes and its compute dtype."""

import dataclasses
import functools

import numpy as np

from benchmarks import steps

MODES = ("train", "forward")


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape of one cell.

    The output of every cell has H features. The loss is half the squared error against
    a target, summed over features and averaged over T and B. The update is plain
    gradient descent.

    Attributes:
      cell: a name in `steps.CELLS`.
      T: time steps.
      B: examples in the batch.
      D: input features.
      H: hidden and output features.
      dtype: of the operands of matrix products: "float32" or "bfloat16".
      S: the side of a picture, for convolutional cells; else 0. Their inputs are
        pictures of S x S places, and their loss is averaged over places, too.
      throughout: whether inputs, vectors, carries and results of products are in
        `dtype`, too.
      last: whether only the output of the last step counts for the loss.

    Raises:
      ValueError: if the cell or the dtype is unknown, if a residual cell has D != H,
        or if S does not fit the cell.
    """

    cell: str
    T: int
    B: int
    D: int
    H: int
    dtype: str = "float32"
    S: int = 0
    throughout: bool = False
    last: bool = False

    def __post_init__(self):
        if self.cell not in steps.CELLS:
            raise ValueError(f"cell={self.cell!r}: expected one of {list(steps.CELLS)}")
        if self.dtype not in TOLERANCES:
            raise ValueError(
                f"dtype={self.dtype!r}: expected one of {list(TOLERANCES)}"
            )
        if "res" in self.cell and self.D != self.H:
            raise ValueError(f"{self.cell} adds x to h: expected D == H, came {self}")
        if ("conv" in self.cell) != bool(self.S):
            raise ValueError(f"S, the side of pictures, is of conv cells: came {self}")

    @property
    def name(self) -> str:
        """A readable and unique name, such as `lstm-T30-B32-D512-H512-float32`."""
        side = f"-S{self.S}" if self.S else ""
        sizes = f"T{self.T}-B{self.B}{side}-D{self.D}-H{self.H}"
        throughout = "-throughout" if self.throughout else ""
        last = "-last" if self.last else ""
        return f"{self.cell}-{sizes}-{self.dtype}{throughout}{last}"

    @property
    def places(self) -> tuple[int, ...]:
        """The sizes of the axes between batch and features: `(S, S)`, or none."""
        return (self.S, self.S) if self.S else ()

    @property
    def rows(self) -> int:
        """The number of feature vectors: T times B, times the places of a picture."""
        return self.T * self.B * int(np.prod(self.places))

    def outputs(self, ys, batch_major: bool = False):
        """The outputs that count: all, or the last step's with a time axis of 1."""
        if not self.last:
            return ys
        return ys[:, -1:] if batch_major else ys[-1:]

    def flops(self, mode: str) -> int:
        """The operations of the GEMMs that no program can leave out.

        A multiplication and an addition are two operations. Training needs every
        forward GEMM, as many operations again for the gradients of the weights, and
        the GEMMs that give the gradients of the carry.
        """
        from_x, from_h = steps.CELLS[self.cell].columns(self.H)
        x_part, h_part = self.D * from_x, self.H * from_h
        per_row = x_part + h_part if mode == "forward" else 2 * x_part + 3 * h_part
        return 2 * self.rows * per_row

    def traffic(self, mode: str) -> int:
        """The bytes that must cross memory at least once, all in float32.

        These are inputs, outputs and weights. Training also reads the target, reads
        the inputs and the weights a second time, and writes the updated weights.
        """
        shapes = steps.CELLS[self.cell].shapes(self.D, self.H).values()
        weights = sum(int(np.prod(shape)) for shape in shapes)
        xs, ys = self.rows * self.D, self.rows * self.H
        ys //= self.T if self.last else 1
        forward = xs + ys + weights
        return 4 * (forward if mode == "forward" else forward + ys + xs + 2 * weights)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A case with its data, which every contender is given.

    Attributes:
      case: the sizes.
      weights: float32 parameters of the naive step, by name.
      xs: inputs `[T, B, D]`, or `[T, B, S, S, D]`.
      target: `[T, B, H]`, or `[T, B, S, S, H]`; T is 1 if only the last output counts.
      lr: the learning rate of the update.
    """

    case: Case
    weights: dict[str, np.ndarray]
    xs: np.ndarray
    target: np.ndarray
    lr: float = 0.1


@functools.lru_cache(maxsize=2)
def problem(case: Case) -> Problem:
    """The data of a case, the same in every run."""
    rng = np.random.default_rng(1)
    size = case.T, case.B, *case.places
    xs = rng.standard_normal((*size, case.D), np.float32)
    target = 0.5 * rng.standard_normal((*size, case.H), np.float32)
    target = case.outputs(target)
    return Problem(case, steps.init(case.cell, case.D, case.H), xs, target)


# Largest relative error (2-norm) of outputs, loss and each gradient against the
# float64 reference. Numbers in bfloat16 have 8 significant bits, and the error of a
# gradient grows on its way back through time.
TOLERANCES = {"float32": 1e-3, "bfloat16": 4e-2}
