"""The view of a step with large matrices: each program runs a slice of the features.

No program has room for such a matrix, but all multiprocessors of a GPU together have:
each keeps the columns of its features in its fast memory for all steps. At every step
the programs exchange what the products read. A program has few examples, because it
reads all features of each of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.gpu import slice_costs as costs
from scanrnn.executors.gpu.block_checks import (
    LEAST_SIDE,
    SUMS,
    NotAKernelError,
    check_numbers,
    check_powers,
)
from scanrnn.executors.gpu.block_kernel import of_one_shape
from scanrnn.executors.gpu.examples import ExamplesView, of_examples, size_of_batch
from scanrnn.executors.gpu.exchange import STOPPED, ThroughMemory, buffers
from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.lanes import ELEMENTWISE, MOVES
from scanrnn.executors.gpu.one_slice import one_slice, width_of
from scanrnn.executors.gpu.slice_products import Exchange, Sizes, product
from scanrnn.executors.gpu.triton import computed
from scanrnn.executors.gpu.view import Store, loaded, read_weights
from scanrnn.executors.kernels.slice_ops import EXCHANGES, product_p, reduction_p
from scanrnn.machines import Machine, cores_here
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, variables

# The fast memory of a program besides its matrices: for the operands of products.
OPERANDS = 84 * 2**10
# The examples that a program may have: columns of a tile.
EXAMPLES = (8, 16, 32, 64)
# The numbers of a product that a program has in registers: 128 for each of 128 threads.
PRODUCT_NUMBERS = 2**14
# The rows that one group of four warps multiplies at once.
GROUP = 64


class SliceView(ExamplesView):
    """A slice of the features, for some examples: a `View` that exchanges."""

    # The rows of the next step are loaded while a step is computed.
    steps = 1
    loads_ahead = True

    @classmethod
    def of(cls, graph: Graph, machine: Machine) -> SliceView:
        """The view of a step on a machine.

        Raises:
          NotAKernelError: if the programs cannot run it.
        """
        batch, reason = size_of_batch(graph), None
        for features, examples in _sizes(graph, batch, machine):
            part = one_slice(graph, features, examples)
            own = of_examples(part.graph, batch, examples)
            view = cls(own, part, batch, examples)
            reason = view._refusal(machine)
            if reason is None:
                return view
        raise NotAKernelError(reason)

    @property
    def grid(self) -> tuple[int, int]:
        """A program for each slice of some examples."""
        return self.part.heads, pl.cdiv(self.batch, self.examples)

    @property
    def warps(self) -> int:
        """The number of warps of a program."""
        most = max(sizes.rows for sizes in self._products.values())
        return 8 if most > GROUP else 4

    @functools.cached_property
    def _exchanges(self) -> list:
        return [e for e in self.graph.eqns if e.primitive in EXCHANGES]

    @functools.cached_property
    def _products(self) -> dict[Var, Sizes]:
        """The sizes of the product by each matrix."""
        found: dict[Var, Sizes] = {}
        for eqn in self._exchanges:
            if eqn.primitive is product_p:
                sizes, (*_, matrix) = Sizes.of(eqn), variables(eqn.invars)
                if found.setdefault(matrix, sizes) != sizes:
                    raise NotAKernelError("a matrix multiplies numbers of two dtypes")
        return found

    @property
    def _held(self) -> int:
        """The bytes of the matrices of a program."""
        avals = map(ops.aval, self._products)
        return sum(ops.product(aval.shape) * aval.dtype.itemsize for aval in avals)

    def _refusal(self, machine: Machine) -> str | None:
        """Why Triton cannot run the step with these sizes, or None.

        Raises:
          NotAKernelError: if it cannot evaluate the step.
        """
        known = ELEMENTWISE | MOVES | SUMS | {p.name for p in EXCHANGES}
        for eqn in self.graph.eqns:
            if eqn.primitive.name not in known:
                raise NotAKernelError(f"Triton has no {eqn.primitive.name}")
            if eqn.primitive is product_p:
                check_numbers(eqn)
                _check_precision(eqn)
        graph, made = self.graph, [v for e in self.graph.eqns for v in e.outvars]
        arrays = {*made, *read_weights(graph), *graph.carry, *graph.xs}
        for v in arrays - self._products.keys():
            check_powers(v)
        for sizes in self._products.values():
            if sizes.parts[0][1] < LEAST_SIDE:
                return "its features are no multiple of 16"
            if sizes.rows * sizes.columns > PRODUCT_NUMBERS:
                return "a program has too many examples"
        if self._held > machine.fast_memory - OPERANDS:
            return "the matrices of a slice are too large"
        return None

    def seconds(self, cores: int) -> float:
        """What a step takes: its exchanges, and what its products read."""
        seconds = costs.OF_A_STEP + self._held / costs.OF_MATRICES
        seconds += len(self._exchanges) * costs.OF_AN_EXCHANGE
        for eqn in self._exchanges:
            if eqn.primitive is product_p:
                s = Sizes.of(eqn)
                seconds += costs.product(s.operands, s.examples, s.depth, s.split)
        return pl.cdiv(math.prod(self.grid), cores) * seconds

    def form(self, v: Var) -> Form:
        """How an array lies in memory, with the whole batch and all slices."""
        return self.part.forms[v]

    def places(self, pieces: Sequence[Piece]) -> list[tuple]:
        """The examples of this program, and its slice."""
        own = self.own(pl.program_id(0), pl.program_id(1))
        return [piece.at(own) for piece in pieces]

    def read(self, v: Var, ref, place: tuple) -> Any:
        """Vectors and rows; a matrix in the parts that are multiplied at once."""
        sizes = self._products.get(v)
        if sizes is None:
            return loaded(v, ref[place])
        parts = [slice(start, start + size) for start, size in sizes.parts]
        return [ref[(*place, slice(None), part)] for part in parts]

    def check_steps(self, length: int) -> None:
        """Check that the programs can count their exchanges in so many steps.

        Raises:
          NotAKernelError: if the count would be too large.
        """
        if length * len(self._exchanges) * self.part.heads >= STOPPED:
            raise NotAKernelError(f"{length} steps have too many exchanges")

    def shared(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the arrays through which the programs exchange."""
        return buffers(self._exchanges, *self.grid)

    def exchange(self, refs: Sequence, step: Any) -> Exchange:
        """Inside the kernel: the exchanges of a step."""
        return ThroughMemory(
            refs, self.part.heads, step, len(self._exchanges), self.examples
        )

    def step(
        self, values: dict[Any, Any], store: Store, exchange: Exchange
    ) -> list[jax.Array]:
        """The next carry of a slice of the features of some examples."""

        def read(atom) -> Any:
            if ops.is_literal(atom):
                return jnp.asarray(atom.val, ops.aval(atom).dtype)
            return values[atom]

        for eqn in self.graph.eqns:
            ins = list(map(read, eqn.invars))
            if eqn.primitive is product_p:
                outs = product(exchange, eqn, ins[:-1], ins[-1])
            elif eqn.primitive is reduction_p:
                outs = [exchange.reduced(ins[0], eqn.params["name"])]
            else:
                outs = [computed(eqn, of_one_shape(eqn, ins))]
            values |= zip(eqn.outvars, outs, strict=True)
        return self.finished(lambda atom: _unless(exchange.stopped, read(atom)), store)


def _check_precision(eqn: JaxprEqn) -> None:
    """Check that a product runs on tensor cores.

    If not, each thread needs more registers than it has: an LSTM of 512 features kept
    7.7 KB of them in memory. Nobody has timed that.

    Raises:
      NotAKernelError: if it does not.
    """
    dtypes = {ops.aval(v).dtype for v in eqn.invars}
    highest = eqn.params["precision"] == (lax.Precision.HIGHEST,) * 2
    if highest and jnp.dtype("float32") in dtypes:
        raise NotAKernelError(
            "float32 products of the highest precision would not run on tensor cores"
        )


def _unless(stopped: Any, array: jax.Array) -> jax.Array:
    """An output of a step: NaN if the program has read wrong numbers."""
    if stopped is False or not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return jnp.where(stopped, jnp.asarray(jnp.nan, array.dtype), array)


def _sizes(graph: Graph, batch: int, machine: Machine) -> list[tuple[int, int]]:
    """The features and the examples of a program, the fastest first.

    All slices must run at the same time. Programs for other examples may come later: a
    GPU starts the programs of a kernel in order. To know the time of all exchanges, the
    step would have to be traced for each of the sizes, so one stands for all.

    Raises:
      NotAKernelError: if no sizes let all slices run.
    """
    width, weights = width_of(graph), {*read_weights(graph)}
    products = [e for e in graph.eqns if e.primitive.name in ops.PRODUCTS]
    matrices = {v for e in products for v in variables(e.invars)} & weights
    if not matrices:
        raise NotAKernelError("it has no product by a matrix")
    if width % LEAST_SIDE or width == LEAST_SIDE:
        raise NotAKernelError(f"{width} features are no multiple of 16, or only 16")
    held, room = ops.bytes_in(matrices), machine.fast_memory - OPERANDS
    left = [ops.aval(v) for e in products for v in {*variables(e.invars)} - weights]
    found, features, cores = [], LEAST_SIDE, cores_here(machine)
    while width // features > cores:
        features *= 2
    least = features
    while width % features == 0 and features < width:
        own, slices = held * features // width, width // features
        for examples in EXAMPLES if own <= room else ():
            waves = pl.cdiv(slices * pl.cdiv(batch, examples), cores)
            seconds = costs.OF_AN_EXCHANGE + own / costs.OF_MATRICES
            for aval in left:
                operands = max(1, math.prod(aval.shape[1:]) // width)
                row = width * aval.dtype.itemsize
                split = costs.split_of(operands, examples, row, slices)
                seconds += costs.product(operands, examples, width, split)
            found.append((waves * seconds, features, examples))
        features *= 2
    if not found:
        own = held * least / width
        raise NotAKernelError(
            f"a slice of {least} features has {own / 2**10:.0f} KB of matrices, and a "
            f"program has room for {room / 2**10:.0f} KB"
        )
    return [(features, examples) for _, features, examples in sorted(found)]
