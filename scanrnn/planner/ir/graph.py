"""A step function as data: inputs by role, equations in order, outputs by role."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import DropVar, JaxprEqn, Literal, Var, jaxprs_in_params

from scanrnn.planner.ir import compat

type_Atom = Var | Literal
# Values, or arrays of all steps, by variable.
Values = Mapping[Var, Any]

# What a value depends on, as bits; 0 means on weights alone.
WEIGHTS, TIME, CARRY = 0, 1, 2


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """One time step: `(weights, carry, xs) -> (carry_out, ys)`.

    The same record describes the user's whole step and the part of it that stays in
    the loop. Passes are functions from `Graph` to `Graph`.
    """

    weights: tuple[Var, ...]
    carry: tuple[Var, ...]
    xs: tuple[Var, ...]
    eqns: tuple[JaxprEqn, ...]
    carry_out: tuple[type_Atom, ...]
    ys: tuple[type_Atom, ...]

    @classmethod
    def of(cls, jaxpr, weights: int, carry: int) -> Graph:
        """The graph of a jaxpr whose inputs are weights, carries, then xs.

        Its constants become weights. It returns as many carries as it takes, first.
        """
        ins, outs = tuple(jaxpr.invars), tuple(jaxpr.outvars)
        return cls(
            weights=(*ins[:weights], *jaxpr.constvars),
            carry=ins[weights : weights + carry],
            xs=ins[weights + carry :],
            eqns=tuple(jaxpr.eqns),
            carry_out=outs[:carry],
            ys=outs[carry:],
        )

    @property
    def inputs(self) -> tuple[Var, ...]:
        """Every input: the weights, the carry, and the xs."""
        return (*self.weights, *self.carry, *self.xs)

    @property
    def outs(self) -> tuple[type_Atom, ...]:
        """Every output: the next carry, then the ys."""
        return (*self.carry_out, *self.ys)

    @functools.cached_property
    def depends(self) -> dict[Any, int]:
        """For each variable and each equation, which of TIME and CARRY it depends on.

        The outputs of a `jax.custom_vjp` count as recurrent even if they depend only on
        weights: its rule must see the cotangent of each step, not their sum.
        """
        bits: dict[Any, int] = dict.fromkeys(self.weights, WEIGHTS)
        bits |= dict.fromkeys(self.xs, TIME) | dict.fromkeys(self.carry, CARRY)
        for eqn in self.eqns:
            kind = 0
            for v in variables(eqn.invars):
                kind |= bits[v]
            bits[eqn] = kind
            kind |= CARRY if has_own_rule(eqn) else 0
            bits |= dict.fromkeys(eqn.outvars, kind)
        return bits

    @functools.cached_property
    def producers(self) -> dict[Any, JaxprEqn]:
        """The equation that defines each variable."""
        return {v: eqn for eqn in self.eqns for v in eqn.outvars}

    def producer(self, atom: type_Atom) -> JaxprEqn | None:
        """The equation that makes a value; None for a constant or an input."""
        return None if isinstance(atom, Literal) else self.producers.get(atom)

    @functools.cached_property
    def consumers(self) -> dict[Any, list[JaxprEqn | None]]:
        """The equations that read each variable; None stands for an output."""
        table: dict[Var, list[JaxprEqn | None]] = {}
        for eqn in self.eqns:
            for v in variables(eqn.invars):
                table.setdefault(v, []).append(eqn)
        for v in variables(self.outs):
            table.setdefault(v, []).append(None)
        return table

    def part(
        self, wanted: Sequence, given: Iterable[Var] = (), leaves: Sequence[int] = ()
    ) -> Graph:
        """The part that computes `wanted` from weights and, as xs, `given` values.

        It keeps some leaves of the carry, by index.
        """
        carry = tuple(self.carry[k] for k in leaves)
        carry_out = tuple(self.carry_out[k] for k in leaves)
        outs = (*carry_out, *wanted)
        eqns = needed(self.eqns, outs, given)
        read = [v for v in free(eqns, outs) if v not in carry]
        weights = tuple(v for v in read if v in self.weights)
        xs = tuple(v for v in read if v not in self.weights)
        return Graph(weights, carry, xs, tuple(eqns), carry_out, tuple(wanted))

    def groups(self, values: Iterable) -> list[list]:
        """Split a flat list of inputs into weights, carry and xs."""
        found = iter(values)
        groups = self.weights, self.carry, self.xs
        return [[next(found) for _ in group] for group in groups]


def variables(atoms: Iterable[type_Atom]) -> list[Var]:
    """The variables among atoms, without constants."""
    return [a for a in atoms if not isinstance(a, Literal)]


def free(eqns: Iterable[JaxprEqn], outs: Iterable[type_Atom] = ()) -> tuple[Var, ...]:
    """The variables that equations and outputs read but the equations do not make."""
    eqns = list(eqns)
    made = {v for e in eqns for v in e.outvars}
    read = [v for e in eqns for v in variables(e.invars)] + variables(outs)
    return tuple(dict.fromkeys(v for v in read if v not in made))


def needed(
    eqns: Sequence[JaxprEqn], wanted: Iterable[type_Atom], given: Iterable[Var] = ()
) -> list[JaxprEqn]:
    """The equations, in order, that compute `wanted` from `given`.

    Equations with effects are always among them.
    """
    given = set(given)
    want = {v for v in variables(wanted) if v not in given}
    kept = []
    for eqn in reversed(eqns):
        if not want.isdisjoint(eqn.outvars) or eqn.effects:
            kept.append(eqn)
            want |= {v for v in variables(eqn.invars) if v not in given}
    return kept[::-1]


def has_own_rule(eqn: JaxprEqn) -> bool:
    """Whether an equation is, or contains, a function with a `jax.custom_vjp`."""
    names = (e.primitive.name for e in (eqn, *inside(eqn)))
    return any(name.startswith("custom_vjp") for name in names)


def inside(eqn: JaxprEqn) -> Iterable[JaxprEqn]:
    """The equations of the programs in an equation, at every depth."""
    for jaxpr in jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            yield inner
            yield from inside(inner)


eval_eqn = compat.bind


class Env(dict):
    """Values by variable. A missing value is computed from its equation."""

    def __init__(self, eqns: Sequence[JaxprEqn], values: Iterable = ()):
        """Start from known values; `eqns` compute the others."""
        super().__init__(values)
        self._eqns = eqns

    @functools.cached_property
    def _makers(self) -> dict[Var, tuple[int, JaxprEqn]]:
        """The equation that makes each variable, with its place in the order."""
        eqns = enumerate(self._eqns)
        return {v: (place, eqn) for place, eqn in eqns for v in eqn.outvars}

    def read(self, atom: type_Atom):
        """The value of an atom; only what is missing is computed."""
        if isinstance(atom, Literal):
            return atom.val
        if atom not in self:
            self.run(self._missing([atom]))
        return self[atom]

    def read_all(self, atoms: Iterable[type_Atom]) -> list:
        """The values of several atoms."""
        atoms = list(atoms)
        self.run(self._missing(atoms))
        return [a.val if isinstance(a, Literal) else self[a] for a in atoms]

    def _missing(self, atoms: Iterable[type_Atom]) -> list[JaxprEqn]:
        """The equations, in order, that compute what is missing.

        It is found from the atoms: to look through all equations for each of thousands
        of values would take minutes.
        """
        todo, found = variables(atoms), {}
        while todo:
            v = todo.pop()
            if v not in self and v in self._makers:
                place, eqn = self._makers[v]
                if place not in found:
                    found[place] = eqn
                    todo += variables(eqn.invars)
        return [found[place] for place in sorted(found)]

    def run(self, eqns: Iterable[JaxprEqn]) -> None:
        """Evaluate equations in the given order.

        Known values stay as they are. For example, some parts of a split may be known
        while the other parts are asked for.
        """
        # To enter a context takes long, and neighbours mostly have the same one.
        for context, group in itertools.groupby(eqns, compat.context):
            with compat.entered(context):
                for eqn in group:
                    self._run(eqn)

    def _run(self, eqn: JaxprEqn) -> None:
        values = [a.val if isinstance(a, Literal) else self[a] for a in eqn.invars]
        for v, value in zip(eqn.outvars, compat.bind_here(eqn, values), strict=True):
            if not isinstance(v, DropVar):
                self.setdefault(v, value)


def struct(atom, *lead) -> jax.ShapeDtypeStruct:
    """The type of a variable for `jax.make_jaxpr`, with `lead` axes in front."""
    found = struct_of(atom.aval)
    return found.update(shape=(*lead, *found.shape)) if lead else found


def struct_of(aval) -> jax.ShapeDtypeStruct:
    """The `jax.ShapeDtypeStruct` of an abstract value, with sharding and weak type."""
    extra = {}
    sharding = getattr(aval, "sharding", None)
    if sharding is not None and not sharding.mesh.empty:
        extra["sharding"] = sharding
    extra |= compat.manual_axes(aval)
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), **extra
    )


def variables_like(structs: Iterable[jax.ShapeDtypeStruct]) -> list[Var]:
    """New variables of given types."""
    return [Var(jax.typeof(struct)) for struct in structs]


def variables_for(structs: Mapping[Any, jax.ShapeDtypeStruct]) -> dict[Any, Var]:
    """A new variable for each key of `structs`, of the type that the key has there."""
    return dict(zip(structs, variables_like(structs.values()), strict=True))
