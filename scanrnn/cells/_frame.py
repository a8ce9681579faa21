"""The base class of our cells: a table of parameters and equations make a cell."""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp

from scanrnn.cells import _checks, _precision, _schemes, _table
from scanrnn.cells._cell import Cell
from scanrnn.cells._weights import Weights


class FramedCell(Cell):
    """A cell that is defined by a table of its parameters and by its equations.

    A subclass sets `name` and `carry_type`, and `gates` if its matrices have several
    gates. It writes `table` and `equations`. All checks, dtypes, starting values and
    carries follow from these.

    Attributes:
        name: name of the factory, for error messages.
        gates: names of the blocks of the last axis of `kernel`, in order.
        carry_type: the NamedTuple of the carry.
        flax_scheme: what Flax's cell has in place of parts of the scheme "flax".
        stabilised: fields of the carry whose scale changes from step to step.
    """

    name: ClassVar[str]
    gates: ClassVar[tuple[str, ...]] = ("h",)
    carry_type: ClassVar[Any]
    flax_scheme: ClassVar[dict[str, Any]] = {}
    stabilised: ClassVar[tuple[str, ...]] = ()
    emits = "h"

    @abc.abstractmethod
    def table(self, in_features: int, hidden_features: int) -> dict[str, _table.Param]:
        """The shapes and starting values of the parameters, by name, with `kernel`."""

    @abc.abstractmethod
    def equations(self, p: Weights, carry, x, noise: dict) -> tuple[Any, Any]:
        """The fields of the new carry, and the output.

        Args:
            p: the parameters; `p.dtype` is the dtype to compute in.
            carry: the carry as the user gave it. Use `p.wide` on what is not an operand
                of a GEMM.
            x: the input `[..., D]`, likewise.
            noise: the random numbers of this step, by name; empty in evaluation.
        """

    def gate_biases(self) -> dict[str, float | None]:
        """By gate, the number added to its bias; None for the number of the scheme."""
        return {"f": None}

    def keeps(self) -> dict[str, float]:
        """By gate, 1.0 if it keeps the carry, -1.0 if it lets new values in.

        `chrono` needs this: a gate z keeps the carry in some papers, and lets new
        values in in others.
        """
        return {"f": 1.0, "i": -1.0}

    def initializers(self) -> dict[str, Any]:
        """Initializers of the cell's paper that replace those of scheme "default"."""
        return {}

    def carry_shapes(self, hidden_features: int) -> dict[str, tuple[int, ...]]:
        """The shape of each field of the carry, without the batch axes."""
        return {name: (hidden_features,) for name in self.carry_type._fields}

    def sizes(self, params) -> tuple[int, int]:
        """D and H, read from parameters that may be wrong."""
        kernel = params["kernel"].shape
        return (*(0,) * (2 - len(kernel)), *kernel)[-2], kernel[-1] // len(self.gates)

    # The rest is the same for all cells.

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
        _table.check_init(self.name, key, in_features, hidden_features, dtype)
        self.check_sizes(in_features, hidden_features)
        if isinstance(scheme, str) and scheme == "default":
            initializers = self.initializers() | initializers
        if isinstance(scheme, str) and scheme == "flax":
            scheme = _schemes.flax(**self.flax_scheme)
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
        """Replace fields by their checked form, so that equal options are equal."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _set_flags(self, *names):
        """Raise TypeError unless these fields are True or False."""
        for name in names:
            flag = _checks.check_flag(self.name, name, getattr(self, name))
            self._set(**{name: flag})

    def _set_numbers(self, *names):
        """Convert these fields to floats, or raise TypeError; None stays."""
        for name in names:
            if (value := getattr(self, name)) is not None:
                self._set(**{name: _checks.check_number(self.name, name, value)})

    def step(self, params, carry, x, noise=None):
        """Advance one time step; see `Cell.step`.

        Args:
            params: from `init`.
            carry: from `initial_carry` or the step before.
            x: the input, `[..., D]`.
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
        """Zeros with the sharding of `x`; see `Cell.initial_carry`."""
        x = jnp.asarray(x)
        hidden_features = self._check(params, x)
        if dtype is None:
            dtype = _precision.pointwise_dtype(params, x)
        _checks.check_floating(self.name, "dtype", dtype)
        # `zeros_like` of a reduction of x keeps its sharding and varying mesh axes. The
        # values are not used, so the compiler drops the reduction.
        zeros = jnp.zeros_like(jnp.sum(x, axis=-1), dtype=dtype)
        shapes = self.carry_shapes(hidden_features)
        return self.carry_type(
            *(_like(zeros, shapes[name]) for name in self.carry_type._fields)
        )

    def _check(self, params, x):
        """Raise unless `params` are this cell's and `x` fits them; return H."""
        return _checks.check_params(self.name, params, x, self.sizes, self.table)[1]


def _like(zeros, shape):
    """`zeros`, broadcast to have these trailing axes."""
    axes = tuple(range(zeros.ndim, zeros.ndim + len(shape)))
    return jnp.broadcast_to(jnp.expand_dims(zeros, axes), (*zeros.shape, *shape))
