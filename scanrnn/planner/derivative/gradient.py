"""Derivative rules of the loop: where each tangent enters.

The tangent of the loop has two parts. *Inside* the loop, tangents of the carry flow,
and those of weights and time inputs that equations outside the regions read.
*Outside*, for all steps at once, the contributions `E_t` of the other weights and
hoisted inputs are computed. JAX transposes both parts. The loop then stacks cotangents
of `E_t`, and the transpose of the outside part is one contraction for each weight.

The contributions of a *region* enter together, at its *cuts* (see `regions.py`). There
`dcut = region(dcarry) + E`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.derivative import tangent
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import CARRY, Env, Graph


@dataclasses.dataclass(frozen=True, eq=False)
class Derivative:
    """How the loop is differentiated.

    Attributes:
      graph: one step of the loop.
      region: equations whose outside operands contribute through `E`.
      cuts: variables at which `E` is added.
      saved: variables whose values the derivative reads for each step: stacked by the
        forward loop, or recomputed.
      carry_saved: indices of carries whose value before each step is needed.
      inner_weights: weights whose tangents flow inside (gains, control flow).
      inner_xs: time inputs whose tangents flow inside.
      tangents: for each variable, the variable of its tangent.
      cotangents: for each stacked variable, the variable of its cotangent.
      transposed: for each matrix that the loop multiplies by, the variable of its
        transpose; empty if matrices are not transposed before the reverse loop.
      differentiated: the equations of the loop as a derivative of it evaluates them.
      pieced: for each split of a contraction's result, the contraction.
      internal: variables inside regions. Their own values are never needed.
      recomputed: computes some of `saved` again, for all steps at once, from carries
        and time inputs; these are not stacked.
      read_inside: variables whose values the tangent loop reads.
      read_outside: variables whose values the contributions read.
    """

    graph: Graph
    region: frozenset[JaxprEqn]
    cuts: tuple[Var, ...]
    saved: tuple[Var, ...]
    carry_saved: tuple[int, ...]
    inner_weights: frozenset[Var]
    inner_xs: frozenset[Var]
    tangents: Mapping[Var, Var]
    cotangents: Mapping[Var, Var]
    transposed: Mapping[Var, Var]
    differentiated: tuple[JaxprEqn, ...]
    pieced: Mapping[JaxprEqn, JaxprEqn]
    internal: frozenset[Var]
    recomputed: Graph = Graph((), (), (), (), (), ())
    read_inside: frozenset[Var] = frozenset()
    read_outside: frozenset[Var] = frozenset()

    def rows(self, read: frozenset[Var]) -> tuple[Var, ...]:
        """The inputs, carries and saved variables among `read`, in the loop's order."""
        graph = self.graph
        carry = [graph.carry[i] for i in self.carry_saved]
        asked = dict.fromkeys((*graph.xs, *carry, *self.saved))
        return tuple(v for v in asked if v in read)

    def propagate(self, values: Mapping, outside: bool = False) -> dict:
        """Tangents of the variables of one step, by variable.

        Args:
          values: values of saved variables, and tangents, by variable.
          outside: whether to compute only the contributions `E` of weights and xs.
        """
        graph, names = self.graph, self.tangents
        # `jax.jvp` also evaluates values that no tangent depends on; zeros will do.
        asked = (*graph.carry, *graph.xs, *self.saved)
        zeros = {v: ops.zeros(ops.aval(v)) for v in asked if v not in values}
        full = {**zeros, **values}
        env = Env(self.differentiated, full)
        found = {v: values[names[v]] for v in graph.inputs if names[v] in values}

        def matrix(v):
            return values.get(self.transposed.get(v))

        for eqn in graph.eqns:
            recurrent = bool(graph.depends[eqn] & CARRY)
            if outside and recurrent and eqn not in self.region:
                continue
            source = self.pieced.get(eqn, eqn) if outside else eqn
            ins = [
                self._operand(a, source, recurrent, found, outside)
                for a in source.invars
            ]
            if source is eqn:
                outs = tangent.push(eqn, ins, env.read, full.get, matrix)
            else:
                outs = tangent.push_in_pieces(source, eqn, ins, env.read)
            for v, t in zip(eqn.outvars, outs, strict=True):
                found[v] = tangent.total(t, values.get(names.get(v)))
        return found

    def _operand(self, atom: Any, eqn, recurrent, found, outside):
        if ops.is_literal(atom):
            return None
        t = found.get(atom)
        if not recurrent or eqn not in self.region:
            return t
        carried = bool(self.graph.depends[atom] & CARRY)
        if outside:
            return t if not carried or atom in self.internal else None
        return t if carried else None


def pieced(graph: Graph, region: frozenset[JaxprEqn]) -> dict[JaxprEqn, JaxprEqn]:
    """For each split of a contraction's result in a region, the contraction.

    Outside, one product `h @ dU_i` for each piece needs no array of all pieces.
    """
    producers, bits = graph.producers, graph.depends
    found = {}
    for eqn in region:
        if eqn.primitive.name == "split":
            made, axis = producers.get(eqn.invars[0]), eqn.params["axis"]
            if made in region and ops.splittable(made, axis, bits):
                found[eqn] = made
    return found
