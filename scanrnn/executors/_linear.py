"""A linear function that says how its own transpose is computed.

JAX transposes a linear program equation by equation. Where that is not the best
program there is, a `Linear` gives another for the same values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from scanrnn.executors._staged import staged
from scanrnn.machines import Machine
from scanrnn.planner.graph import struct_of

linear_p = Primitive("linear")
linear_p.multiple_results = True


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """A function of lists of arrays, linear in the second.

    Neither callable may close over traced values.

    Attributes:
      forward: `(fixed, moving) -> outs`; JAX may differentiate it in both.
      transposed: `(machine, alone) -> (fixed, cts) -> cts of moving`, where None
        stands for a cotangent that is zero. It is never differentiated.
      machine: that of the plan.
    """

    forward: Callable[[list, list], list]
    transposed: Callable[[Machine, bool], Callable[[list, list], list]]
    machine: Machine

    def __call__(self, fixed: Sequence, moving: Sequence) -> list:
        """Apply the function."""
        return linear_p.bind(*fixed, *moving, function=self, count=len(fixed))


def _forward(*args, function, count):
    return function.forward(list(args[:count]), list(args[count:]))


def _types(*avals, function, count):
    flat = functools.partial(_forward, function=function, count=count)
    return jax.make_jaxpr(flat)(*avals).out_avals


def _jvp(primals, tangents, *, function, count):
    known, moving = list(primals[:count]), list(primals[count:])
    outs = function(known, moving)
    d_known, d_moving = tangents[:count], tangents[count:]
    terms = []
    if not all(isinstance(t, ad.Zero) for t in d_moving):
        terms.append(function(known, list(map(ad.instantiate_zeros, d_moving))))
    at = [i for i, t in enumerate(d_known) if not isinstance(t, ad.Zero)]
    if at:

        def of_known(*values):
            changed = dict(zip(at, values, strict=True))
            return function.forward(
                [changed.get(i, x) for i, x in enumerate(known)], moving
            )

        some = [known[i] for i in at], [d_known[i] for i in at]
        terms.append(jax.jvp(of_known, *some)[1])
    return outs, [functools.reduce(jnp.add, ts) for ts in zip(*terms, strict=True)]


def _transpose(cts, *args, function, count):
    fixed, moving = list(args[:count]), args[count:]
    wanted = [ad.is_undefined_primal(m) for m in moving]
    structs = [
        struct_of(m.aval if w else jax.typeof(m))
        for m, w in zip(moving, wanted, strict=True)
    ]
    cts = [None if isinstance(ct, ad.Zero) else ct for ct in cts]
    found = _transposed(function, structs)(fixed, cts)
    found = [ct if w else None for w, ct in zip(wanted, found, strict=True)]
    return [None] * count + found


def _transposed(function, structs) -> Callable:
    """The transpose. Its own derivatives are those of the one that JAX makes."""

    def plain(fixed, cts):
        forward = functools.partial(function.forward, fixed)
        outs = jax.eval_shape(forward, structs)
        full = [
            jnp.zeros(o.shape, o.dtype) if ct is None else ct
            for ct, o in zip(cts, outs, strict=True)
        ]
        (found,) = jax.linear_transpose(forward, structs)(full)
        return found

    def run(fixed, cts):
        count, absent = len(fixed), [ct is None for ct in cts]

        def full(f):
            def flat(*args):
                some = iter(args[count:])
                every = [None if none else next(some) for none in absent]
                return f(list(args[:count]), every)

            return flat

        def build(machine, alone):
            return full(function.transposed(machine, alone))

        given = [ct for ct in cts if ct is not None]
        return staged(build, function.machine, full(plain), [*fixed, *given])

    return run


def _batched(args, axes, *, function, count):
    """Under `vmap`: the same function of batches, all that moves with an axis first."""
    pairs = list(zip(args, axes, strict=True))
    size = next(a.shape[d] for a, d in pairs if d is not None)

    def first(a, d):
        whole = d is None
        return jnp.broadcast_to(a, (size, *a.shape)) if whole else jnp.moveaxis(a, d, 0)

    moving = [first(m, d) for m, d in pairs[count:]]
    fixed_axes = list(axes[:count])

    def mapped(f):
        return jax.vmap(f, (fixed_axes, 0), axis_size=size)

    def transposed(machine, alone):
        return mapped(function.transposed(machine, alone))

    batch = Linear(mapped(function.forward), transposed, function.machine)
    outs = batch(list(args[:count]), moving)
    return outs, [0] * len(outs)


linear_p.def_impl(_forward)
linear_p.def_abstract_eval(_types)
ad.primitive_jvps[linear_p] = _jvp
ad.primitive_transposes[linear_p] = _transpose
batching.primitive_batchers[linear_p] = _batched
mlir.register_lowering(linear_p, mlir.lower_fun(_forward, multiple_results=True))
