"""What is measured: a cell, its sizes and its compute dtype."""

import dataclasses
import functools

import numpy as np

from benchmarks import steps

MODES = ("train", "forward")


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape of one cell.

    The output has H features for every cell of the benchmark. The loss is half
    the squared error against a target, summed over features, averaged over T
    and B; its update is plain gradient descent. A cell that convolves sees pictures
    of S x S places in the place of vectors; its loss is averaged over them, too.
    Operands of products are of `dtype`; where it is `throughout`, so is all the rest:
    inputs, vectors, carries and what products make. Where only the `last` output
    counts, the loss is of that one.
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
        """Readable and unique, such as `lstm-T30-B32-D512-H512-float32`."""
        side = f"-S{self.S}" if self.S else ""
        sizes = f"T{self.T}-B{self.B}{side}-D{self.D}-H{self.H}"
        throughout = "-throughout" if self.throughout else ""
        last = "-last" if self.last else ""
        return f"{self.cell}-{sizes}-{self.dtype}{throughout}{last}"

    @property
    def places(self) -> tuple[int, ...]:
        """The axes of one example before its features."""
        return (self.S, self.S) if self.S else ()

    @property
    def rows(self) -> int:
        """How many vectors of features there are."""
        return self.T * self.B * int(np.prod(self.places))

    def outputs(self, ys, batch_major: bool = False):
        """What counts of the outputs of all steps; time remains an axis."""
        if not self.last:
            return ys
        return ys[:, -1:] if batch_major else ys[-1:]

    def flops(self, mode: str) -> int:
        """Multiply-adds times two in the GEMMs that nobody can leave out.

        Training needs every forward GEMM, as much again for the weight
        gradients, and the activation gradients of the recurrent half.
        """
        from_x, from_h = steps.CELLS[self.cell].columns(self.H)
        x_part, h_part = self.D * from_x, self.H * from_h
        per_row = x_part + h_part if mode == "forward" else 2 * x_part + 3 * h_part
        return 2 * self.rows * per_row

    def traffic(self, mode: str) -> int:
        """Float32 bytes that must cross memory at least once.

        Inputs, outputs and weights; in training also the target, the inputs a
        second time, and the weights once more to write the update.
        """
        shapes = steps.CELLS[self.cell].shapes(self.D, self.H).values()
        weights = sum(int(np.prod(shape)) for shape in shapes)
        xs, ys = self.rows * self.D, self.rows * self.H
        ys //= self.T if self.last else 1
        forward = xs + ys + weights
        return 4 * (forward if mode == "forward" else forward + ys + xs + 2 * weights)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A case with its data: what every contender is given.

    Attributes:
      case: the sizes.
      weights: float32 params of the naive step, by name.
      xs: inputs `[T, B, D]`, or `[T, B, S, S, D]`.
      target: `[T, B, H]`, or `[T, B, S, S, H]`; of the last step, T is 1.
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
# float64 reference. Half-precision operands keep 8 bits; the error of a gradient
# grows on its way through time.
TOLERANCES = {"float32": 1e-3, "bfloat16": 4e-2}
