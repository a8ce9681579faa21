"""Functions made of jaxprs and of other functions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax

from scanrnn.planner.ir.graph import Env, eval_eqn, variables

K = TypeVar("K")
T = TypeVar("T")


def evaluate(jaxpr, consts: Sequence, values: Iterable, rule: Callable) -> list:
    """Evaluate a jaxpr, each equation by `rule(eqn, values)`.

    If the rule returns None, the equation is evaluated as it is. Outside of `jax.jit`
    the arrays are real ones, so each is dropped after its last use.
    """
    names = (*jaxpr.constvars, *jaxpr.invars)
    env = Env((), zip(names, (*consts, *values), strict=True))
    readers = [(i, v) for i, e in enumerate(jaxpr.eqns) for v in variables(e.invars)]
    last = {v: i for i, v in readers} | dict.fromkeys(variables(jaxpr.outvars))
    for i, eqn in enumerate(jaxpr.eqns):
        ins = list(map(env.read, eqn.invars))
        outs = rule(eqn, ins)
        outs = eval_eqn(eqn, ins) if outs is None else outs
        env.update(zip(eqn.outvars, outs, strict=True))
        for v in {*variables(eqn.invars), *eqn.outvars}:
            if last.get(v, i) == i:
                del env[v]
    return list(map(env.read, jaxpr.outvars))


def reread(f: Callable, rule: Callable) -> Callable:
    """A function that traces `f` and evaluates its equations by a rule."""

    def run(*args):
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        outs = evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args), rule)
        return jax.tree.structure(shapes).unflatten(outs)

    return run


def once(f: Callable[[K], T]) -> Callable[[K], T]:
    """`f`, computed once for each graph or body, and forgotten together with it.

    What `f` returns must not refer to its argument, or neither would ever be freed.
    """
    known: weakref.WeakKeyDictionary[K, Any] = weakref.WeakKeyDictionary()

    @functools.wraps(f)
    def of(given):
        if given not in known:
            known[given] = f(given)
        return known[given]

    return of


def of_some(f: Callable, args: Sequence, at: Iterable[int]) -> Callable:
    """`f` as a function of the arguments at some places only; the others are given."""

    def of(*values):
        full = dict(enumerate(args)) | dict(zip(at, values, strict=True))
        return f(*full.values())

    return of
