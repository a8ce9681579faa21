"""Names of JAX that are not public API, or that differ between versions.

Only this module reads them. For a new version of JAX, this is the one file to check.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.core import trace_ctx
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, primitives
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

# Calls that only group equations.
_CALLS = (primitives.jit_p, primitives.call_p, primitives.closed_call_p)
# Calls of functions that have a derivative rule of their own.
_RULED = (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
# All calls of JAX. Their names are not the same in all versions: in JAX 0.12,
# `closed_call` is `eval_jaxpr`.
_RUNS = (*_CALLS, primitives.remat_p, *_RULED)


def needed_for(closed: ClosedJaxpr, used: Sequence[bool]) -> ClosedJaxpr:
    """A program with some of its outputs, without equations that only others need."""
    jaxpr, _ = pe.dce_jaxpr(closed.jaxpr, used, instantiate=True)
    return closed.replace(jaxpr=jaxpr)


def remove_unused_by(primitive: Any, rule: Callable) -> None:
    """Give a primitive its rule of dead code.

    The rule takes which outputs are used, and the equation. It returns which inputs are
    used then, and the equation that is left, or None.
    """
    # JAX 0.12 also says which inputs are live, before it gives the equation.
    pe.dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def bind(eqn: JaxprEqn, values: Sequence, params: dict | None = None) -> list:
    """Evaluate one equation in the context (mesh, metadata) in which it was traced."""
    with entered(eqn.ctx):
        return bind_here(eqn, values, params)


def bind_here(eqn: JaxprEqn, values: Sequence, params: dict | None = None) -> list:
    """Evaluate one equation in the present context."""
    bound = eqn.primitive.get_bind_params(params or eqn.params)
    with _scope(eqn):
        out = eqn.primitive.bind(*values, **bound)
    return list(out) if eqn.primitive.multiple_results else [out]


def _scope(eqn: JaxprEqn) -> contextlib.AbstractContextManager:
    """The `jax.named_scope` of an equation, by which profilers show its operations."""
    names = scope(eqn)
    return jax.named_scope(names) if names else contextlib.nullcontext()


def scope(eqn: JaxprEqn) -> str:
    """The names of the scopes in which an equation was traced."""
    return str(eqn.source_info.name_stack)


# The context in which an equation was traced.
context = operator.attrgetter("ctx")


def entered(context) -> contextlib.AbstractContextManager:
    """Enter the context of an equation."""
    return context.manager


def is_group(eqn: JaxprEqn) -> bool:
    """Whether an equation is a call that does nothing but group others."""
    return eqn.primitive in _CALLS


def is_checkpoint(eqn: JaxprEqn) -> bool:
    """Whether an equation is a `jax.checkpoint`."""
    return eqn.primitive is primitives.remat_p


def is_any_call(eqn: JaxprEqn) -> bool:
    """Whether an equation is any call: its outputs are the outputs of its program."""
    return eqn.primitive in _RUNS


def has_rule(eqn: JaxprEqn) -> bool:
    """Whether an equation is a function with a derivative rule of its own."""
    return eqn.primitive in _RULED


def has_simple_jvp(eqn: JaxprEqn) -> bool:
    """Whether it is a `jax.custom_jvp` whose rule gets every tangent as an array."""
    sees = eqn.params.get("symbolic_zeros", False)
    return eqn.primitive is primitives.custom_jvp_call_p and not sees


def program(eqn: JaxprEqn) -> Any:
    """The jaxpr, open or closed, of an equation; None if it holds none."""
    names = "jaxpr", "call_jaxpr", "fun_jaxpr"
    return next((eqn.params[name] for name in names if name in eqn.params), None)


def opened(jaxpr) -> tuple[Any, Sequence]:
    """A jaxpr and its constants, from a closed one or an open one."""
    jaxpr, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
    atoms = itertools.chain(jaxpr.outvars, *(eqn.invars for eqn in jaxpr.eqns))
    if any(map(_is_array, atoms)):
        return _arrays_apart(jaxpr, consts)
    return jaxpr, consts


def _is_array(atom) -> bool:
    return isinstance(atom, Literal) and np.ndim(atom.val) > 0


def _arrays_apart(jaxpr, consts: Sequence) -> tuple[Any, Sequence]:
    """A jaxpr whose arrays are constants, in the order in which they are first read.

    Under `jax_use_simplified_jaxpr_constants`, which is to become JAX's default, the
    arrays that a function closes over are parts of its equations.
    """
    given = dict(zip(jaxpr.constvars, consts, strict=True))
    found: dict[Any, tuple] = {}

    def named(atom):
        if _is_array(atom):
            return found.setdefault(id(atom.val), (Var(atom.aval), atom.val))[0]
        if not isinstance(atom, Literal) and atom in given:
            found[atom] = atom, given[atom]
        return atom

    eqns = [eqn.replace(invars=list(map(named, eqn.invars))) for eqn in jaxpr.eqns]
    outs = list(map(named, jaxpr.outvars))
    names, arrays = zip(*found.values(), strict=True)
    jaxpr = jaxpr.replace(constvars=list(names), eqns=eqns, outvars=outs)
    # In JAX 0.12 a jaxpr knows its constants by their values.
    return ClosedJaxpr(jaxpr, list(arrays)).jaxpr, arrays


def calling(eqn: JaxprEqn, closed) -> JaxprEqn:
    """An equation that calls a program, with the inputs and outputs of `eqn`."""
    params = {"call_jaxpr": closed}
    return eqn.replace(primitive=primitives.closed_call_p, params=params)


def joining(eqn: JaxprEqn, parts: Sequence, whole: Sequence, axis: int) -> JaxprEqn:
    """An equation that joins `parts` to `whole`, in the context of `eqn`."""
    params = {"dimension": axis}
    return eqn.replace(
        primitive=primitives.concatenate_p,
        params=params,
        invars=list(parts),
        outvars=list(whole),
        effects=set(),
    )


def expanded(eqn: JaxprEqn, values: Sequence) -> list | None:
    """The results of an equation that JAX expands before it lowers; None for others.

    In JAX 0.12 `searchsorted` is such a primitive, with all programs that contain it.
    """
    is_high = getattr(eqn.primitive, "is_high", None)
    if is_high is None or not is_high(*(a.aval for a in eqn.invars), **eqn.params):
        return None
    outs = eqn.primitive.to_lojax(*values, **eqn.params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


def is_by_platform(eqn: JaxprEqn) -> bool:
    """Whether a `cond` has a branch for each platform."""
    return eqn.params.get("branches_platforms") is not None


def scan_arity(eqn: JaxprEqn) -> tuple[int, int]:
    """The number of constants, and the number of carries, among a scan's operands."""
    params = eqn.params
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # jax 0.12
    return len(list(consts)), len(list(carry))


def type_of(primitive, *avals, **params) -> Any:
    """The type of a primitive's result, given the types of its operands."""
    aval, _ = primitive.abstract_eval(*avals, **params)
    return aval


def has_tangent(value: Any) -> bool:
    """Whether the innermost transformation differentiates a value.

    While a step is traced, a value that it closes over may have a tangent of an outer
    transformation.
    """
    if not isinstance(value, Tracer) or not hasattr(value, "tangent"):
        return False
    return value._trace is trace_ctx.trace


def with_weak_type(array, weak: bool):
    """An array with a weak type, which adopts other dtypes, or without one."""
    return primitives.convert_element_type_p.bind(
        array, new_dtype=array.dtype, weak_type=weak, sharding=None
    )


def manual_axes(aval) -> dict[str, Any]:
    """The mesh axes over which a type varies, as keywords of `jax.ShapeDtypeStruct`.

    Empty, except for types inside `jax.shard_map`.
    """
    manual = getattr(aval, "manual_axis_type", None)
    return {} if manual is None else {"manual_axis_type": manual}


def varying_axes(aval) -> tuple:
    """Names of the mesh axes over which a value differs, inside `jax.shard_map`."""
    manual = manual_axes(aval).get("manual_axis_type")
    return tuple(getattr(manual, "varying", ()))


def is_counter_based(dtype) -> bool:
    """Whether random keys of a dtype give the same numbers under `vmap` as alone."""
    return dtype == _counter_based()


@functools.cache
def _counter_based():
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def lower_alone(primitive, platform, alone, otherwise) -> None:
    """Lower a primitive of one result by `alone` on one device, else by `otherwise`.

    The keyword `exports` tells `alone` whether the program will be exported.
    """

    def lower(ctx, *args, **params):
        here = functools.partial(alone, exports=is_for_export(ctx))
        f = here if on_one_device(ctx) else otherwise
        return mlir.lower_fun(f, multiple_results=False)(ctx, *args, **params)

    mlir.register_lowering(primitive, lower, platform=platform)


def lower_traced(ctx, jaxpr, *args):
    """Lower a closed jaxpr as it is; `mlir.lower_fun` would trace it once more."""
    if ctx.platforms is not None:
        here = ctx.module_context.replace(platforms=ctx.platforms)
        ctx = ctx.replace(module_context=here)
    return mlir.core_call_lowering(ctx, *args, name="ruled", call_jaxpr=jaxpr)


def on_one_device(ctx) -> bool:
    """Whether a program is being lowered for a single device."""
    return getattr(ctx.module_context.axis_context, "num_devices", 0) == 1


def is_for_export(ctx) -> bool:
    """Whether the program being lowered will be exported, as by `jax.export`."""
    return bool(ctx.module_context.lowering_parameters.for_export)
