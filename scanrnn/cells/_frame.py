"""The frame of a cell: from a table of parameters and equations to its functions."""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp

from scanrnn.cells import _checks, _precision, _table
from scanrnn.cells._cell import Cell
from scanrnn.cells._weights import Weights


class FramedCell(Cell):
    """A cell that says its parameters in a table and its step in equations.

    A cell of one's own needs `name`, `carry_type`, `gates` if its matrices have
    several, a `table` and its `equations`; all checks, dtypes, initial values and
    carries follow from them.

    Attributes:
        name: of its factory, for messages.
        gates: names of the blocks of the last axis of `kernel`, in their order.
        carry_type: the NamedTuple that it carries.
    """

    name: ClassVar[str]
    gates: ClassVar[tuple[str, ...]] = ("h",)
    carry_type: ClassVar[Any]
    emits = "h"

    @abc.abstractmethod
    def table(self, in_features: int, hidden_features: int) -> dict[str, _table.Param]:
        """The parameters by name, `kernel` among them."""

    @abc.abstractmethod
    def equations(self, p: Weights, carry, x, noise: dict) -> tuple[Any, Any]:
        """The fields of the new carry, and the output.

        Args:
            p: the parameters; `p.dtype` is what both are computed in.
            carry: as it came: what is no operand of a GEMM has to be widened.
            x: likewise.
            noise: of this step, by name; empty in evaluation.
        """

    def gate_biases(self) -> dict[str, float | None]:
        """What is added to the first bias of a gate; None for what the scheme adds."""
        return {"f": None}

    def keeps(self) -> dict[str, float]:
        """By gate, 1.0 if it keeps the carry, -1.0 if it lets the new in: for `chrono`.

        A gate called z does the one in one paper and the other in the next.
        """
        return {"f": 1.0, "i": -1.0}

    def initializers(self) -> dict[str, Any]:
        """Those of the cell's paper, where scheme "default" has others."""
        return {}

    def carry_shapes(self, hidden_features: int) -> dict[str, tuple[int, ...]]:
        """The shape of every field of the carry, without the axes of a batch."""
        return {name: (hidden_features,) for name in self.carry_type._fields}

    def sizes(self, params) -> tuple[int, int]:
        """D and H of parameters that may be wrong."""
        kernel = params["kernel"].shape
        return (*(0,) * (2 - len(kernel)), *kernel)[-2], kernel[-1] // len(self.gates)

    # What follows is the same for all.

    def init(
        self,
        key,
        in_features,
        hidden_features,
        dtype=jnp.float32,
        *,
        scheme="default",
        **initializers,
    ):
        """Draw the parameters; see `Cell.init`."""
        _table.check_init(self.name, in_features, hidden_features, dtype)
        self.check_sizes(in_features, hidden_features)
        if isinstance(scheme, str) and scheme == "default":
            initializers = self.initializers() | initializers
        return _table.draw(
            self.name,
            self.table(in_features, hidden_features),
            key,
            hidden_features,
            dtype,
            self.gate_biases(),
            self.keeps(),
            scheme,
            initializers,
        )

    def check_sizes(self, in_features, hidden_features):
        """Raise ValueError if the cell cannot have these sizes."""

    def _set(self, **fields):
        """Set fields while they are checked: the same option by two names is one."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _set_numbers(self, *names):
        """Set these fields as floats, or raise TypeError; None stays."""
        for name in names:
            if (value := getattr(self, name)) is not None:
                self._set(**{name: _checks.check_number(self.name, name, value)})

    def step(self, params, carry, x, noise=None):
        """Advance one time step; see `Cell.step`.

        Args:
            params: from `init`.
            carry: from `initial_carry` or the step before.
            x: `[..., D]`.
            noise: random numbers of this step, by name; None in evaluation.
        """
        x = jnp.asarray(x)
        hidden_features = self._check(params, x)
        shapes = self.carry_shapes(hidden_features)
        _checks.check_carry(self.name, carry, self.carry_type, x.shape[:-1], shapes)
        p = Weights(params, carry, x, self.dtype, x.ndim - 1)
        new, y = self.equations(p, carry, x, noise or {})
        new = _precision.cast_like(self.carry_type(*new), carry)
        if self.emits is not None:
            return new, getattr(new, self.emits)
        return new, y.astype(carry[0].dtype)

    def initial_carry(self, params, x, dtype=None):
        """Zeros that are sharded as `x` is; see `Cell.initial_carry`."""
        x = jnp.asarray(x)
        hidden_features = self._check(params, x)
        if dtype is None:
            dtype = _precision.pointwise_dtype(params, x)
        _checks.check_floating(self.name, "dtype", dtype)
        # Zeros *like* a reduction of x have its sharding and its varying mesh axes;
        # its value is not used, so the compiler drops the reduction.
        zeros = jnp.zeros_like(jnp.sum(x, axis=-1), dtype=dtype)
        shapes = self.carry_shapes(hidden_features)
        return self.carry_type(
            *(_like(zeros, shapes[name]) for name in self.carry_type._fields)
        )

    def _check(self, params, x):
        """Raise unless `params` are this cell's and `x` fits them; return H."""
        return _checks.check_params(self.name, params, x, self.sizes, self.table)[1]


def _like(zeros, shape):
    """`zeros` with axes of this shape behind."""
    axes = tuple(range(zeros.ndim, zeros.ndim + len(shape)))
    return jnp.broadcast_to(jnp.expand_dims(zeros, axes), (*zeros.shape, *shape))
