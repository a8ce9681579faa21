"""Plan the loops of code that somebody else wrote."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scanrnn import _objects
from scanrnn._scan import scan
from scanrnn.planner import Options
from scanrnn.planner.ir import compat
from scanrnn.planner.ir.functions import evaluate
from scanrnn.planner.ir.graph import eval_eqn
from scanrnn.planner.trace import pinned

# It stands for an array among the outputs of a function.
_ARRAY = object()


def accelerate(fn: Callable, *, plan: Options | None = None) -> Callable:
    """Make a function that runs every `jax.lax.scan` of `fn` through `scanrnn.scan`.

    At each call `fn` is traced, and the trace is evaluated with its scans planned. This
    includes the scans inside `jax.jit`, `jax.checkpoint`, `lax.cond` and other scans.
    Results and gradients are those of `fn`. Wrap the result in `jax.jit` or `jax.grad`
    as you would wrap `fn` itself, also if `fn` is jitted: outside of `jax.jit`,
    everything except its scans runs one operation at a time. Accelerate the forward
    function, then differentiate it: if `fn` already computes a gradient, its reverse
    loop can no longer be planned.

    Args:
      fn: a pure function of pytrees. Arguments that are not arrays (a flag, a name, the
        number of steps) reach it unchanged. Results that are not arrays (a function, a
        name) come back unchanged. If an NNX module among the arguments changes its own
        state (dropout, batch statistics), it is changed, as under `nnx.jit`. If `fn`
        writes into other arguments (a dict, a list), the change is lost, as under
        `jax.jit`.
      plan: `Options` for the planner; None for the defaults.

    Returns:
      A function with the signature of `fn`.

    Raises:
      TypeError: if `fn` is not callable, or `plan` is not `Options`.
      ValueError: at a call, if `fn` adds a variable to an NNX module.

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp, scanrnn
      >>> model = nn.RNN(nn.OptimizedLSTMCell(4))
      >>> x = jnp.ones((2, 5, 3))
      >>> params = model.init(jax.random.key(0), x)
      >>> fast = jax.jit(scanrnn.accelerate(model.apply))
      >>> bool(jnp.allclose(fast(params, x), model.apply(params, x), atol=1e-6))
      True

    Reference:
      See `scanrnn.scan`.
    """
    if not callable(fn):
        raise TypeError(
            f"accelerate: fn must be callable, got {type(fn).__name__}; give a "
            "function such as model.apply"
        )
    if plan is not None and not isinstance(plan, Options):
        raise TypeError(
            f"accelerate: plan must be scanrnn.Options(...), got {type(plan).__name__}"
        )

    @functools.wraps(fn)
    def run(*args, **kwargs):
        outputs, written = [], []

        def arrays():
            inner = _objects.copied((args, kwargs))
            before = _objects.values(inner)
            leaves, out_tree = jax.tree.flatten(fn(*inner[0], **inner[1]))
            changed = _objects.changed(inner, before)
            # A traced array that outlived its trace would be a leak.
            outputs[:] = [_ARRAY if _is_array(x) else x for x in leaves], out_tree
            written[:] = changed
            return [*filter(_is_array, leaves), *changed.values()]

        # The trace closes over the arrays, so that `fn` can still read their values.
        closed = jax.make_jaxpr(arrays)()
        outs = _evaluate(closed.jaxpr, closed.consts, (), plan)
        outs = map(_as_array, outs, closed.out_avals)
        leaves, out_tree = outputs
        result = out_tree.unflatten(next(outs) if x is _ARRAY else x for x in leaves)
        _objects.write((args, kwargs), dict(zip(written, outs, strict=True)))
        return result

    return run


def _is_array(leaf: Any) -> bool:
    """Whether `jax.jit` would make an array of an output."""
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return not isinstance(leaf, jax.ShapeDtypeStruct)


def _as_array(out: Any, aval) -> Any:
    """An output as an array; a jaxpr holds some constants as plain numbers."""
    if isinstance(out, jax.Array):
        return out
    weak = aval.weak_type and np.ndim(out) == 0
    return jnp.asarray(np.asarray(out).item()) if weak else jnp.asarray(out, aval.dtype)


def _evaluate(jaxpr, consts: Sequence, args: Sequence, plan) -> list:
    """Evaluate a jaxpr with its scans planned."""
    # A derivative rule may read an array by a traced index, which NumPy refuses.
    consts = [jnp.asarray(c) if isinstance(c, np.ndarray) else c for c in consts]
    return evaluate(
        jaxpr, consts, args, lambda eqn, values: _way_to_run(eqn)(eqn, values, plan)
    )


def _way_to_run(eqn) -> Callable:
    if compat.is_group(eqn):
        return _call
    if compat.is_checkpoint(eqn):
        return _checkpoint
    return {"scan": _scan, "cond": _cond}.get(eqn.primitive.name, _as_it_is)


def _as_it_is(eqn, values, plan):
    del plan
    return eval_eqn(eqn, values)


def _scan(eqn, values, plan):
    params = eqn.params
    n, m = compat.scan_arity(eqn)
    consts, carry, xs = values[:n], values[n : n + m], values[n + m :]

    def body(carry, x):
        outs = _inner(params["jaxpr"], [*consts, *carry, *x], plan)
        return outs[:m], outs[m:]

    length = None if xs else params["length"]
    carry, ys = scan(
        body, carry, xs, length, params["reverse"], params["unroll"], plan=plan
    )
    return [*carry, *ys]


def _call(eqn, values, plan):
    inner = compat.program(eqn)
    places: dict[str, Any] = {name: at for name, at in pinned(eqn).items() if at}
    if not places:
        return _inner(inner, values, plan)
    return jax.jit(lambda *args: tuple(_inner(inner, args, plan)), **places)(*values)


def _checkpoint(eqn, values, plan):
    params = eqn.params
    run = jax.checkpoint(
        lambda *args: _inner(compat.program(eqn), args, plan),
        prevent_cse=params["prevent_cse"],
        policy=params["policy"],
    )
    return run(*values)


def _cond(eqn, values, plan):
    # Some branches for other platforms may not even compile here.
    if compat.is_by_platform(eqn):
        return _as_it_is(eqn, values, plan)
    which, *operands = values
    branches = [
        lambda *args, branch=branch: _inner(branch, args, plan)
        for branch in eqn.params["branches"]
    ]
    # The index of a boolean predicate is already 0 or 1 here.
    return lax.switch(which, branches, *operands)


def _inner(inner, values, plan) -> list:
    jaxpr, consts = compat.opened(inner)
    return _evaluate(jaxpr, consts, values, plan)
