"""Derivative rules of the loop: what to save, and where each tangent enters.

The tangent of the loop is split in two. *Inside*, only carry tangents (and those
of time inputs that enter pointwise) flow. *Outside*, for all steps at once, the
contribution `E_t` of every weight and of every hoisted input is computed where
it enters. JAX transposes both: the loop yields stacked cotangents of `E_t`, and
the transpose of the outside half is one contraction per weight.

A *region* is where contributions enter together: a contraction (or what gathers
or rearranges a weight) with the sums, casts and splits that follow it. Its ends
are the *cuts*; `dcut = region(dcarry) + E`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Var

from scanrnn.planner import ops, tangent
from scanrnn.planner.graph import CARRY, Env, Graph, needed, struct, variables
from scanrnn.planner.regions import Regions
from scanrnn.planner.saved import candidates

POLICIES = ("minimal", "recompute", "chunked", "everything")


@dataclasses.dataclass(frozen=True, eq=False)
class Derivative:
    """How the loop is differentiated.

    Attributes:
      loop: the loop's graph.
      region: equations whose outside operands contribute through `E`.
      cuts: variables at which `E` is added.
      saved: variables the forward loop stacks for the reverse one.
      carry_saved: indices of carries whose value before each step is needed.
      inner_weights: weights whose tangents flow inside (gains, control flow).
      inner_xs: time inputs whose tangents flow inside.
      turns: whether matrices are transposed before the reverse loop.
      read_inside: variables whose values the tangent loop reads.
      read_outside: variables whose values the contributions read.
    """

    loop: Graph
    region: frozenset[JaxprEqn]
    cuts: tuple[Var, ...]
    saved: tuple[Var, ...]
    carry_saved: tuple[int, ...]
    inner_weights: frozenset[Var]
    inner_xs: frozenset[Var]
    turns: bool = True
    read_inside: frozenset[Var] = frozenset()
    read_outside: frozenset[Var] = frozenset()

    @functools.cached_property
    def bits(self) -> dict[Var, int]:
        """What each variable of the loop depends on."""
        return self.loop.depends()

    @functools.cached_property
    def internal(self) -> frozenset[Var]:
        """Variables inside regions: their primal values are never needed."""
        made = {v for e in self.region for v in e.outvars}
        return frozenset(made - set(self.cuts))

    def inside(
        self, primals: dict, tangents: dict, entering: dict, turned: dict | None = None
    ) -> dict:
        """Tangents of one step's variables, given those of carry and `E`.

        `turned` may hold transposes of the matrices named in `self.matrices`.
        """
        return self._propagate(primals, tangents, entering, turned or {})

    def outside(self, primals: dict, tangents: dict) -> dict:
        """The contributions `E` of one step, given tangents of weights and xs."""
        found = self._propagate(primals, tangents, {}, {}, outside=True)
        return {v: found[v] for v in self.cuts if found.get(v) is not None}

    def rows(self, read: frozenset[Var]) -> tuple[Var, ...]:
        """What is read of each step, in the order of the loop."""
        loop = self.loop
        carry = [loop.carry[i] for i in self.carry_saved]
        asked = dict.fromkeys((*loop.xs, *carry, *self.saved))
        return tuple(v for v in asked if v in read)

    @functools.cached_property
    def reverses(self) -> dict:
        """Reverse steps that were made, by what moves in them."""
        return {}

    @functools.cached_property
    def matrices(self) -> tuple[Var, ...]:
        """Weights that the recurrence multiplies by, to be given transposed, too."""
        found = {}
        for eqn in self.loop.eqns if self.turns else ():
            for side, v in enumerate(eqn.invars if ops.is_heavy(eqn) else ()):
                if (
                    not ops.is_literal(v)
                    and v in self.loop.weights
                    and ops.is_matrix_of(eqn, side)
                ):
                    found[v] = None
        return tuple(found)

    def _propagate(self, primals, tangents, entering, turned, outside=False) -> dict:
        env = Env(self.differentiated, primals)
        found = dict(tangents)

        def output(v):
            return primals.get(v)

        for eqn in self.loop.eqns:
            recurrent = any(self.bits[v] & CARRY for v in variables(eqn.invars))
            if outside and recurrent and eqn not in self.region:
                continue
            source = self.pieced.get(eqn, eqn) if outside else eqn
            ins = [
                self._operand(a, source, recurrent, found, outside)
                for a in source.invars
            ]
            if source is eqn:
                outs = tangent.push(eqn, ins, env.read, output, turned.get)
            else:
                outs = tangent.push_in_pieces(source, eqn, ins, env.read)
            for v, t in zip(eqn.outvars, outs, strict=True):
                found[v] = tangent.total(t, entering.get(v))
        return found

    @functools.cached_property
    def differentiated(self) -> tuple[JaxprEqn, ...]:
        """The loop's equations, for values that are needed beside tangents."""
        return tangent.differentiated(self.loop.eqns)

    @functools.cached_property
    def pieced(self) -> dict[JaxprEqn, JaxprEqn]:
        """Splits of a contraction's result, with the contraction.

        Outside, `h @ dU_i` for each piece needs no array of all pieces.
        """
        producers = self.loop.producers()
        found = {}
        for eqn in self.region:
            made = (
                producers.get(eqn.invars[0]) if eqn.primitive.name == "split" else None
            )
            if made in self.region and ops.splittable(
                made, eqn.params["axis"], self.bits
            ):
                found[eqn] = made
        return found

    def _operand(self, atom: Any, eqn, recurrent, found, outside):
        if ops.is_literal(atom):
            return None
        t = found.get(atom)
        if not recurrent or eqn not in self.region:
            return t
        carried = bool(self.bits[atom] & CARRY)
        if outside:
            return t if not carried or atom in self.internal else None
        return t if carried else None

    def nonzero(self, moving: set[Var], entering: set[Var]) -> set[Var]:
        """Variables with a tangent inside the loop, given the inputs that have."""
        found = set(moving)
        for eqn in self.loop.eqns:
            recurrent = any(self.bits[v] & CARRY for v in variables(eqn.invars))
            masked = recurrent and eqn in self.region
            ins = [
                not ops.is_literal(a)
                and a in found
                and (not masked or bool(self.bits[a] & CARRY))
                for a in eqn.invars
            ]
            if tangent.moves(eqn, ins):
                found |= {v for v in eqn.outvars if ops.is_inexact(v)}
            found |= entering & set(eqn.outvars)
        return found


def derive(
    loop: Graph, regions: Regions, policy: str = "minimal", turns: bool = True
) -> Derivative:
    """Decide what is saved, and what reads it.

    Args:
      loop: the part of the step that stays in the loop.
      regions: where contributions from outside enter.
      policy: "minimal" saves what contractions produced, "recompute" only
        carries, "everything" all a tangent reads ("chunked" is "minimal" here:
        the executor cuts the sequence).
      turns: whether matrices are transposed before the reverse loop.
    """
    bits = loop.depends()
    inner = _inner(loop, bits, regions.eqns)
    draft = Derivative(
        loop=loop,
        region=frozenset(regions.eqns),
        cuts=tuple(regions.cuts),
        saved=(),
        carry_saved=(),
        inner_weights=frozenset(inner & set(loop.weights)),
        inner_xs=frozenset(inner & set(loop.xs)),
        turns=turns,
    )
    found = candidates(draft, regions, policy)
    inside, outside = _read_primals(draft, found)
    used = inside | outside
    return dataclasses.replace(
        draft,
        read_inside=inside,
        read_outside=outside,
        saved=tuple(v for v in found if v in used),
        carry_saved=tuple(i for i, v in enumerate(loop.carry) if v in used),
    )


def _inner(loop, bits, region) -> set[Var]:
    """Variables off the recurrence whose tangents must flow inside the loop."""

    def off(v) -> bool:
        return not bits[v] & CARRY

    wanted = {v for v in variables(loop.outs) if off(v)}
    for eqn in loop.eqns:
        if eqn not in region and any(not off(v) for v in variables(eqn.invars)):
            wanted |= {v for v in variables(eqn.invars) if off(v)}
    for eqn in needed(loop.eqns, wanted):
        wanted |= set(variables(eqn.invars))
    return wanted


def _read_primals(draft, candidates) -> tuple[frozenset[Var], frozenset[Var]]:
    """What the tangent program reads: in its loop, and outside of it."""
    loop = draft.loop
    known = [*loop.inputs, *candidates]
    moving = [v for v in (*loop.inputs, *draft.cuts) if ops.is_inexact(v)]

    def inside(primals, tangents):
        inner = {*loop.carry, *draft.inner_weights, *draft.inner_xs}
        entering = {v: t for v, t in tangents.items() if v in draft.cuts}
        tangents = {v: t for v, t in tangents.items() if v in inner}
        found = draft.inside(primals, tangents, entering)
        return [found.get(v) for v in variables(loop.outs)]

    def outside(primals, tangents):
        outer = {*loop.weights, *loop.xs}
        tangents = {v: t for v, t in tangents.items() if v in outer}
        return list(draft.outside(primals, tangents).values())

    return _reads(inside, known, moving), _reads(outside, known, moving)


def _reads(program, known, moving) -> frozenset[Var]:
    """Those of `known` whose values `program(values, tangents)` needs.

    All of them where not everything can have a tangent at once: JAX has derivatives
    of some functions for some operands only, and which move is known when it is asked.
    """

    def flat(primals, tangents):
        primals = dict(zip(known, primals, strict=True))
        outs = program(primals, dict(zip(moving, tangents, strict=True)))
        return [t for t in outs if t is not None]

    args = [struct(v) for v in known], [struct(v) for v in moving]
    try:
        jaxpr = jax.make_jaxpr(flat)(*args).jaxpr
    except (NotImplementedError, TypeError, ValueError):
        return frozenset(known)
    eqns = needed(jaxpr.eqns, jaxpr.outvars)
    read = {*variables(jaxpr.outvars), *(v for e in eqns for v in variables(e.invars))}
    pairs = zip(known, jaxpr.invars[: len(known)], strict=True)
    return frozenset(v for v, i in pairs if i in read)
