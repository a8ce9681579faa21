"""Trace a Python step function to a `Graph` and the arrays it closes over."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Var, mapped_aval

from scanrnn.planner.derivative import checkpoints
from scanrnn.planner.ir import compat
from scanrnn.planner.ir.functions import evaluate
from scanrnn.planner.ir.gemm import dot, gemm_p
from scanrnn.planner.ir.graph import Graph, struct_of
from scanrnn.planner.ir.retrace import retrace


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A traced step.

    Attributes:
      graph: the step as a graph.
      weights: the arrays that the step closes over.
      init: the leaves of the initial carry.
      xs: the leaves of the inputs, `[T, ...]`.
      out_tree: the tree structure of the pair that the step returns.
      length: T, the number of steps; an int or symbolic.
      source: the traced jaxpr; the same step and shapes give the same object.
    """

    graph: Graph
    weights: list[Any]
    init: list[Any]
    xs: list[Any]
    out_tree: Any
    length: Any
    source: Any


def trace(f: Callable, init: Any, xs: Any, length: Any) -> Traced:
    """Trace the step `f` on the abstract values of one time step.

    Args:
      f: one time step, `f(carry, x) -> (carry, y)`.
      init: the initial carry, a pytree of arrays or `jax.ShapeDtypeStruct`.
      xs: the inputs, a pytree of arrays or `jax.ShapeDtypeStruct` `[T, ...]`, or None.
      length: T; None takes it from `xs`.

    Returns:
      The `Traced` step.

    Raises:
      TypeError: if `f` is not callable, does not return a pair, or changes the
        structure, shape or dtype of its carry; if a leaf of `init` or `xs` is not an
        array or a number; if `length` is not a number.
      ValueError: if the leading sizes of `xs` disagree with each other or `length`, if
        a leaf of `xs` is a scalar, if `length` is not a whole number, or if both `xs`
        and `length` are None.

    Example:
      >>> import jax.numpy as jnp
      >>> from scanrnn.planner import trace
      >>> traced = trace(lambda h, x: (h + x, h), jnp.ones(2), jnp.ones((5, 2)), None)
      >>> traced.length, traced.init[0].shape
      (5, (2,))
    """
    if not callable(f):
        raise TypeError(f"scan: f must be callable, got {type(f).__name__}")
    xs_flat, xs_tree = jax.tree.flatten(xs)
    xs_flat = [_as_array(x) for x in xs_flat]
    length = _length(_names(xs), xs_flat, length)
    init_flat, carry_tree = jax.tree.flatten(init)
    init_flat = [_as_array(c) for c in init_flat]
    x_structs = [struct_of(mapped_aval(length, 0, jax.typeof(x))) for x in xs_flat]

    def attempt(init_flat):
        carry = [struct_of(jax.typeof(c)) for c in init_flat]
        args = carry_tree.unflatten(carry), xs_tree.unflatten(x_structs)
        return jax.make_jaxpr(f, return_shape=True)(*args)

    closed, shapes = attempt(init_flat)
    n = len(init_flat)
    _check_pair(shapes, carry_tree)
    promoted = _promote_weak(init_flat, closed.out_avals[:n])
    if promoted is not None:
        init_flat = promoted
        closed, shapes = attempt(init_flat)
    _check_carry(init, init_flat, closed.out_avals[:n])
    jaxpr, weights = compat.opened(closed)
    return Traced(
        graph=Graph.of(jaxpr, 0, n),
        weights=list(weights),
        init=init_flat,
        xs=xs_flat,
        out_tree=jax.tree.structure(shapes),
        length=length,
        source=closed.jaxpr,
    )


def inline(graph: Graph, opens: Callable | None = None) -> tuple[Graph, list]:
    """Replace nested calls by their equations. Returns the graph and new constants.

    `opens` says which calls are replaced; None for those that a plan looks into.
    """
    opens = opens or functools.partial(_opens, checkpoints.is_checkpointed(graph))

    def rule(eqn, env):
        return _evaluated(opens, eqn, map(env.read, eqn.invars))

    return retrace(graph, rule, dict.fromkeys(filter(opens, graph.eqns)))


def without_invariant(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Turn carries that a step returns unchanged into weights; and their indices."""
    pairs = list(zip(graph.carry, graph.carry_out, strict=True))
    fixed = tuple(i for i, (v, out) in enumerate(pairs) if v is out)

    def rest(group) -> tuple:
        return tuple(v for i, v in enumerate(group) if i not in fixed)

    invariant: tuple[Var, ...] = tuple(graph.carry[i] for i in fixed)
    graph = dataclasses.replace(
        graph,
        weights=(*graph.weights, *invariant),
        carry=rest(graph.carry),
        carry_out=rest(graph.carry_out),
    )
    return graph, fixed


def _evaluated(opens, eqn, values):
    """The outputs of an equation by evaluating its program; None if it stays closed."""
    if not opens(eqn):
        return None
    if eqn.primitive is gemm_p:
        return [dot(*values, **eqn.params)]
    jaxpr, consts = compat.opened(compat.program(eqn))
    return evaluate(jaxpr, consts, values, functools.partial(_evaluated, opens))


def _opens(whole, eqn) -> bool:
    if compat.is_checkpoint(eqn):
        return checkpoints.opens(eqn, whole)
    # A jit that pins shardings stays whole: the partitioner needs the shardings.
    # A `gemm` comes from a planned scan inside this step.
    calls = compat.is_group(eqn) and not any(pinned(eqn).values())
    return calls or eqn.primitive is gemm_p


def pinned(eqn) -> dict[str, tuple]:
    """The shardings that a `jax.jit` pins, by its argument's name; empty if none."""
    found = {}
    for name in ("in_shardings", "out_shardings"):
        given = [
            s if isinstance(s, jax.sharding.Sharding) else None
            for s in eqn.params.get(name, ())
        ]
        found[name] = tuple(given) if any(s is not None for s in given) else ()
    return found


def _as_array(leaf):
    """Arrays and tracers unchanged; Python and NumPy scalars as JAX arrays."""
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        return jnp.asarray(leaf)
    if isinstance(leaf, jax.Array):
        return leaf
    if hasattr(leaf, "__jax_array__"):
        return leaf.__jax_array__()
    if not hasattr(leaf, "shape"):
        raise TypeError(
            "scan: every leaf of init and xs must be an array or a number, got "
            f"{type(leaf).__name__}"
        )
    return leaf


def _names(tree) -> list[str]:
    """The names of the leaves of a tree, such as `['h']`, to follow the tree's name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in leaves]


def _length(names, xs_flat, length):
    for name, x in zip(names, xs_flat, strict=True):
        if jnp.ndim(x) == 0:
            raise ValueError(
                f"scan: xs{name} is a scalar; every leaf of xs needs a leading time "
                "axis (jnp.asarray makes one array of lists of numbers; the step can "
                "close over a value that all steps share)"
            )
    if length is None and not xs_flat:
        raise ValueError(
            "scan: with xs=None, length must be given (or, if f is a layer or a model "
            "and not a step, call scanrnn.plans)"
        )
    if length is not None:
        length = _whole(length)
    sizes = [x.shape[0] for x in xs_flat]
    wanted = sizes[0] if length is None else length
    if any(s != wanted for s in sizes):
        got = ", ".join(f"xs{n} has {s}" for n, s in zip(names, sizes, strict=True))
        raise ValueError(
            f"scan: leading sizes must all be the number of steps; {got}"
            + (f", length is {length}" if length is not None else "")
        )
    return wanted


def _whole(length):
    """A length as an int; a symbolic length stays as it is."""
    numbers = int | float | np.ndarray | np.generic | jax.Array
    if isinstance(length, Tracer):
        raise TypeError(
            f"scan: length must be known when the program is traced; got {length}. "
            "Make it a static argument (jax.jit(..., static_argnames='length'), say), "
            "or let xs give the number of steps"
        )
    if not isinstance(length, numbers) and hasattr(length, "__int__"):
        return length
    number = np.asarray(length)
    if number.dtype.kind not in "biuf" or number.ndim:
        got = f"{length!r} of type {type(length).__name__}"
        raise TypeError(f"scan: length must be a number of steps; got {got}")
    if not 0 <= number == np.floor(number) < np.inf:
        raise ValueError(f"scan: length must be a whole number of steps; got {length}")
    return int(number)


def _check_pair(shapes, carry_tree):
    if not isinstance(shapes, tuple | list) or len(shapes) != 2:
        several = isinstance(shapes, tuple | list)
        got = f"{len(shapes)} values" if several else _kind(shapes)
        raise TypeError(
            f"scan: f must return a pair (carry, y), got {got}; return (carry, None) "
            "if there is no output"
        )
    out_tree = jax.tree.structure(shapes[0])
    if out_tree != carry_tree:
        raise TypeError(
            "scan: f must return a carry of the structure of init; init is "
            f"{carry_tree}, f returned {out_tree}; return the same containers"
        )


def _kind(value) -> str:
    """What one value is that a step returns, in words."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"one array, {value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}"


def _promote_weak(init_flat, out_avals):
    """Cast weakly typed leaves of init to the dtype of the step, as `lax.scan` does."""
    changed, new = False, []
    for c, out in zip(init_flat, out_avals, strict=True):
        aval = jax.typeof(c)
        if getattr(aval, "weak_type", False) and aval.dtype != out.dtype:
            dtype = jnp.result_type(c, out)
            c, changed = jax.lax.convert_element_type(c, dtype), True
        new.append(c)
    return new if changed else None


def _check_carry(init, init_flat, out_avals):
    for name, c, out in zip(_names(init), init_flat, out_avals, strict=True):
        aval = jax.typeof(c)
        if aval.shape != out.shape or aval.dtype != out.dtype:
            raise TypeError(
                "scan: f must return a carry of the shape and dtype it was given; "
                f"init{name} is {aval.str_short()}, f returned {out.str_short()} "
                "(cast or reshape the carry inside f, or start from an init of "
                "the type f returns)"
            )
