"""The view of a step with products: each program runs some examples of the batch.

All features of these examples lie in one program, so nothing is exchanged between
programs. A program with one example runs a step in the fewest instructions, and the
multiprocessors of a GPU are many. So each example gets a program, as long as there are
multiprocessors and matrices need not be read at every step.

Parts of matrices stay in registers or in the fast memory of the program for all steps,
as many as fit; the others are read again at every step, from a cache. A product of
which a step reads parts, an LSTM's gates say, is computed part by part: Triton has no
slices.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.gpu.block_checks import NUMBERS, check
from scanrnn.executors.gpu.block_products import Matrix, Product, in_registers
from scanrnn.executors.gpu.examples import ExamplesView, of_examples, size_of_batch
from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.lanes import ELEMENTWISE
from scanrnn.executors.gpu.one_head import OneHead
from scanrnn.executors.gpu.parts import Kept, casts, kept_parts
from scanrnn.executors.gpu.triton import computed
from scanrnn.executors.gpu.view import Store, loaded
from scanrnn.executors.kernels.forms import multiplied
from scanrnn.machines import Machine
from scanrnn.planner.integers import divisor
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, eval_eqn
from scanrnn.planner.ir.rows import spans

# The examples of a program that has several: the columns of a tile.
EXAMPLES = 8
# Seconds of a step, of a product and of a sum over features, and bytes per second that
# a program reads: rounded from times of an LSTM and a GRU on an H100 and an H200.
OF_A_STEP, OF_A_PRODUCT, OF_A_SUM = 8e-7, 5e-7, 6e-7
OF_FAST_MEMORY, OF_A_CACHE = 2e11, 3e10


@dataclasses.dataclass(frozen=True, eq=False)
class BatchView(ExamplesView):
    """Some examples of the batch: a `View`.

    Attributes:
      matrices: the weights that are read part by part.
      kept: where their parts are. On an H200 a GRU (1024, 2, 128) in bfloat16 took 0.77
        of the time to train if they are in registers and not in the fast memory.
      steps: the most steps whose rows are loaded together: rows take many registers.
      loads_ahead: the rows of the next steps are loaded while these steps are computed.
        It leaves 0.75 and 0.79 of the time.
    """

    matrices: frozenset[Var]
    kept: Kept
    steps: int = 1
    loads_ahead: bool = True

    @classmethod
    def of(cls, graph: Graph, machine: Machine) -> BatchView:
        """The view of a step on a machine.

        Raises:
          NotAKernelError: if a program cannot run it.
        """
        part = OneHead.of(graph)
        size = size_of_batch(part.graph)
        matrices = frozenset(multiplied(part.graph))
        kept = kept_parts(part.graph, matrices, machine.fast_memory)
        few = not kept.read and size * part.heads <= machine.cores
        examples = _examples(part.graph, few)
        own = of_examples(part.graph, size, examples)
        matrices = frozenset(multiplied(own))
        check(own, matrices)
        kept = kept_parts(own, matrices, machine.fast_memory)
        return cls(own, part, size, examples, matrices, kept)

    @property
    def grid(self) -> tuple[int, int]:
        """A program for some examples of each head."""
        return pl.cdiv(self.batch, self.examples), self.part.heads

    @property
    def warps(self) -> int:
        """The number of warps of a program."""
        return self.kept.warps

    def seconds(self, cores: int) -> float:
        """What a step takes: its products, its sums, and matrices that are read."""
        waves = -(-math.prod(self.grid) // cores)
        names = [e.primitive.name for e in self.graph.eqns]
        products = sum(name in ops.PRODUCTS for name in names)
        sums = sum(map(ops.is_reduction, self.graph.eqns))
        return waves * (
            OF_A_STEP
            + products * OF_A_PRODUCT
            + sums * OF_A_SUM
            + self.kept.held / OF_FAST_MEMORY
            + self.kept.read / OF_A_CACHE
        )

    def form(self, v: Var) -> Form:
        """How an array lies in memory, with the whole batch and all heads."""
        form = self.part.forms[v]
        return form._replace(transposed=v in self._transposed)

    @functools.cached_property
    def _transposed(self) -> frozenset[Var]:
        """The arrays that are matrices, of the whole step."""
        pairs = zip(self.graph.inputs, self.inputs, strict=True)
        return frozenset(piece.array for v, piece in pairs if v in self.matrices)

    def places(self, pieces: Sequence[Piece]) -> list[tuple]:
        """The examples of this program, and its head."""
        own = self.own(pl.program_id(1), pl.program_id(0))
        return [piece.at(own) for piece in pieces]

    def read(self, v: Var, ref, place: tuple) -> Any:
        """Vectors and rows are in registers; matrices are read in parts."""
        if v not in self.matrices:
            return loaded(v, ref[place])
        matrix, kept = Matrix(ref, place), self.kept
        own = {at: in_registers(matrix.part(at)) for at in kept.registers[v]}
        return matrix._replace(
            loaded=own | {at: matrix.part(at) for at in kept.fast_memory[v]}
        )

    def step(self, values: dict[Any, Any], store: Store, exchange: None = None) -> list:
        """The next carry of the examples of a program."""

        def read(atom):
            if ops.is_literal(atom):
                return jnp.asarray(atom.val, ops.aval(atom).dtype)
            if isinstance(values[atom], Product):
                values[atom] = values[atom].value()
            found = values[atom]
            return _joined(found) if isinstance(found, list) else found

        def pieces(atom):
            found = None if ops.is_literal(atom) else values[atom]
            return found if isinstance(found, list) else [read(atom)]

        graph = self.graph
        for eqn in graph.eqns:
            name, out = eqn.primitive.name, eqn.outvars[0]
            if name in ops.PRODUCTS:
                params, aval = eqn.params, ops.aval(out)
                values[out] = Product(
                    pieces(eqn.invars[0]),
                    values[eqn.invars[1]],
                    0,
                    aval.shape[1],
                    aval.dtype,
                    params["precision"],
                )
            elif name == "split":
                whole = values[eqn.invars[0]]
                if isinstance(whole, Product):
                    outs = [whole.part(*place) for place in spans(eqn.params["sizes"])]
                else:
                    outs = eval_eqn(eqn, [read(eqn.invars[0])])
                values |= zip(eqn.outvars, outs, strict=True)
            elif name == "concatenate":
                values[out] = [a for v in eqn.invars for a in pieces(v)]
            elif casts(eqn) and isinstance(values[eqn.invars[0]], list):
                values[out] = [
                    a.astype(ops.aval(out).dtype) for a in values[eqn.invars[0]]
                ]
            else:
                values[out] = computed(eqn, of_one_shape(eqn, map(read, eqn.invars)))
        return self.finished(read, store)


def _examples(graph: Graph, few: bool) -> int:
    """The examples of a program.

    Args:
      graph: the step for the whole batch.
      few: whether each example can have a program of its own. If there are products in
        float64, it cannot: a tile of them has 8 columns.
    """
    made = [v for e in graph.eqns for v in e.outvars]
    products = [e for e in graph.eqns if e.primitive.name in ops.PRODUCTS]
    if few and all(ops.aval(e.outvars[0]).dtype != "float64" for e in products):
        return 1
    if products:
        return EXAMPLES
    sizes = (ops.product(ops.aval(v).shape[1:]) for v in (*graph.carry, *made))
    return divisor(EXAMPLES, max(1, NUMBERS // max(sizes)))


def _joined(parts: list):
    """Arrays of one size side by side, two at a time: what Triton can do."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    pair = _joined(parts[:half]), _joined(parts[half:])
    rows, columns = pair[0].shape
    return jnp.stack(pair, -1).swapaxes(-1, -2).reshape(rows, 2 * columns)


def of_one_shape(eqn: JaxprEqn, ins: Iterable) -> list:
    """Operands of one shape: in a batch of one, some do not have the batch."""
    shape = ops.aval(eqn.outvars[0]).shape
    if eqn.primitive.name not in ELEMENTWISE:
        return list(ins)
    return [jnp.broadcast_to(a, shape) if jnp.ndim(a) else a for a in ins]
