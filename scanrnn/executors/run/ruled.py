"""A program with derivative rules of its own, whose details depend on the platform.

JAX differentiates and transposes a program equation by equation, and runs the same
program on every platform. A `Ruled` gives JAX a better derivative, a better transpose,
or a better program for each platform.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from scanrnn.executors.run.mapped import mapped_outs
from scanrnn.machines import Machine, machine_for
from scanrnn.planner.derivative.tangent import pushed
from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.functions import evaluate, of_some
from scanrnn.planner.ir.graph import struct_of

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
ruled_p = Primitive(ops.RULED)
ruled_p.multiple_results = True

# `(machine, alone) -> program`; `alone` says whether it is for one device.
Build = Callable[[Machine, bool], Callable[..., list]]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Ruled:
    """A function from arrays to a list of arrays, with rules of its own.

    The program for the plan's machine is traced. If JAX lowers for another platform,
    for several at once (`jax.export`), or for several devices, the program for that
    machine computes the same values. Under `vmap` the axis of the batch is the first
    axis of each output of a linear function, whatever reaches it: so a tangent and its
    cotangent agree. Other outputs have it if something mapped reaches them, and floats
    also while the function is differentiated.

    No callable may close over traced values.

    Attributes:
      function: the function in a form that JAX can differentiate and transpose.
      build: from a machine to the program that runs there.
      machine: the machine of the plan.
      jvp: `(primals, tangents) -> (outs, tangents)`, or None for the derivative of
        `function`; a tangent that is None is zero.
      transposed: the transpose by machine, `(fixed, cts) -> cts of the others`, or None
        for the transpose of `function`; a cotangent that is None is zero. It is never
        differentiated.
      fixed: how many of the first arguments the function need not be linear in.
      loop: whether it is a loop, which no gradient should run again.
      types: the types of its outputs, if known; else empty. If they are known, the
        program is traced only if it runs. The tangents of a gradient never run.
    """

    function: Callable[..., list]
    build: Build
    machine: Machine
    jvp: Callable | None = None
    transposed: Build | None = None
    fixed: int = 0
    loop: bool = False
    types: tuple = ()

    def __call__(self, *args) -> list:
        """Apply the function."""
        # If it is differentiated, another program runs: this trace would be wasted.
        untraced = self.types or any(map(compat.has_tangent, args))
        jaxpr = None if untraced else self.traced(*args)
        return ruled_p.bind(*args, jaxpr=jaxpr, program=self)

    def only(self, used: Sequence[bool]) -> Ruled:
        """The same function with some of its outputs, and what computes them alone."""
        jvp, transpose = self.jvp, self.transposed

        def chosen(outs) -> list:
            return list(itertools.compress(outs, used))

        def build(*where):
            def run(*args):
                closed = jax.make_jaxpr(self.build(*where))(*args)
                return jaxpr_as_fun(compat.needed_for(closed, used))(*args)

            return run

        def transposed(*where):
            assert transpose is not None
            pull = transpose(*where)

            def run(fixed, cts):
                given = iter(cts)
                return pull(fixed, [next(given) if u else None for u in used])

            return run

        return dataclasses.replace(
            self,
            function=lambda *args: chosen(self.function(*args)),
            build=build,
            jvp=jvp and (lambda *args: tuple(map(chosen, jvp(*args)))),
            transposed=transpose and transposed,
            types=tuple(chosen(self.types)),
        )

    def traced(self, *args, machine: Machine | None = None, alone: bool = True):
        """The program for a machine, by default that of the plan, as a jaxpr."""
        f = self.build(machine or self.machine, alone)
        return _expanded(jax.make_jaxpr(f)(*args))


def _expanded(closed):
    """A jaxpr without equations that JAX expands before it lowers a program.

    Derivatives are those of the equations themselves, which may have their own rules.
    """
    if not getattr(closed, "is_high", False):
        return closed

    def run(*args):
        return evaluate(closed.jaxpr, closed.consts, args, compat.expanded)

    return jax.make_jaxpr(run)(*map(struct_of, closed.in_avals))


def _jvp(primals, tangents, *, program, **_):
    rule = program.jvp or functools.partial(pushed, program.function)
    tangents = [None if isinstance(t, ad.Zero) else t for t in tangents]
    outs, found = rule(list(primals), tangents)
    zeros = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    return outs, [z if t is None else t for t, z in zip(found, zeros, strict=True)]


def _transpose(cts, *args, program, **_):
    at = [i for i, a in enumerate(args) if ad.is_undefined_primal(a)]
    if program.transposed is None:
        structs = [struct_of(args[i].aval) for i in at]
        full = list(map(ad.instantiate_zeros, cts))
        found = jax.linear_transpose(of_some(program.function, args, at), *structs)(
            full
        )
        found = dict(zip(at, found, strict=True))
    else:
        found = dict(enumerate(_transposed(program, cts, args), program.fixed))
    return [found[i] if i in at else None for i in range(len(args))]


def _transposed(program, cts, args) -> list:
    """Run the given transpose. Its derivatives are those of JAX's own transpose."""
    n, zeros = program.fixed, [isinstance(ct, ad.Zero) for ct in cts]
    moving = [a.aval if ad.is_undefined_primal(a) else jax.typeof(a) for a in args[n:]]
    structs = list(map(struct_of, moving))
    avals = [ct.aval if zero else None for ct, zero in zip(cts, zeros, strict=True)]

    def of_given(f, zero):
        """`f` as a function of the fixed arguments and the nonzero cotangents."""

        def flat(*args):
            given = iter(args[n:])
            every = [next(given) if aval is None else zero(aval) for aval in avals]
            return f(list(args[:n]), every)

        return flat

    def function(fixed, cts):
        forward = functools.partial(program.function, *fixed)
        return list(jax.linear_transpose(forward, *structs)(cts))

    def build(machine, alone):
        return of_given(program.transposed(machine, alone), lambda _: None)

    given = [ct for ct, zero in zip(cts, zeros, strict=True) if not zero]
    run = Ruled(of_given(function, ops.zeros), build, program.machine)
    return run(*args[:n], *given)


def _batched(args, axes, *, jaxpr, program):
    args, axes, n = list(args), list(axes), program.fixed
    size = next(a.shape[d] for a, d in zip(args, axes, strict=True) if d is not None)
    if program.transposed is not None:
        # A tangent and its cotangent must have the batch at the same axis: the first.
        pairs = zip(args[n:], axes[n:], strict=True)
        args[n:] = [batching.bdim_at_front(a, axis, size) for a, axis in pairs]
        axes[n:] = [0] * len(args[n:])

    def mapped(f, in_axes=axes):
        return jax.vmap(f, tuple(in_axes), axis_size=size)

    def mapped_by_machine(build, *in_axes):
        return build and (lambda *where: mapped(build(*where), *in_axes))

    batch = dataclasses.replace(
        program,
        function=mapped(program.function),
        build=mapped_by_machine(program.build),
        jvp=program.jvp and mapped(program.jvp, (axes, axes)),
        transposed=mapped_by_machine(program.transposed, (axes[:n], 0)),
        types=(),
    )
    outs = batch(*args)
    shared = _unmapped(program, jaxpr, args, axes, outs) if size else ()
    return (
        [out[0] if i in shared else out for i, out in enumerate(outs)],
        [None if i in shared else 0 for i in range(len(outs))],
    )


def _unmapped(program, jaxpr, args, axes, outs) -> set[int]:
    """The outputs that are the same for the whole batch.

    If the program is not traced, because it is differentiated, they are sought among
    those without tangents alone.
    """
    found = set(range(len(outs)))
    if jaxpr is None:
        found = {i for i in found if not ops.is_inexact_dtype(outs[i].dtype)}
    if not found or program.transposed is not None:
        return set()

    def of_one(*args):
        pairs = zip(args, axes, strict=True)
        one = [a if d is None else lax.index_in_dim(a, 0, d, False) for a, d in pairs]
        return program.build(program.machine, True)(*one)

    if jaxpr is None:
        jaxpr = jax.make_jaxpr(of_one)(*map(struct_of, map(jax.typeof, args)))
    mapped = mapped_outs(jaxpr, [d is not None for d in axes])
    return {i for i in found if not mapped[i]}


def _without_unused(used, eqn):
    """Remove outputs that nothing reads, and what computes them.

    XLA would remove them too, but only after it has fused them with others.
    """
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    every = [True] * len(eqn.invars)
    if all(used):
        return every, eqn
    jaxpr = eqn.params["jaxpr"]
    params = {
        "program": eqn.params["program"].only(used),
        "jaxpr": jaxpr and compat.needed_for(jaxpr, used),
    }
    outvars = list(itertools.compress(eqn.outvars, used))
    return every, eqn.replace(outvars=outvars, params=params)


def _lowering(platform: str) -> Callable:
    def rule(ctx, *args, jaxpr, program):
        here, alone = program.machine, compat.on_one_device(ctx)
        if platform == "cuda" and compat.is_for_export(ctx):
            # JAX exports no kernel of Triton, because nobody promises that it will run
            # elsewhere. So XLA runs the loops, as on several devices.
            alone = False
        if platform != here.platform:
            here = machine_for(platform)
        if jaxpr is None or here is not program.machine or not alone:
            structs = map(struct_of, ctx.avals_in)
            jaxpr = program.traced(*structs, machine=here, alone=alone)
        return compat.lower_traced(ctx, jaxpr, *args)

    return rule


def _value(*args, jaxpr, program):
    if jaxpr is None:
        return program.build(program.machine, True)(*args)
    return jaxpr_as_fun(jaxpr)(*args)


def _types(*avals, jaxpr, program):
    if jaxpr is None and program.types:
        return program.types
    return (jaxpr or program.traced(*map(struct_of, avals))).out_avals


ruled_p.def_impl(_value)
ruled_p.def_abstract_eval(_types)
ad.primitive_jvps[ruled_p] = _jvp
ad.primitive_transposes[ruled_p] = _transpose
batching.primitive_batchers[ruled_p] = _batched
compat.remove_unused_by(ruled_p, _without_unused)
for name in PLATFORMS:
    mlir.register_lowering(ruled_p, _lowering(name), platform=name)
mlir.register_lowering(ruled_p, mlir.lower_fun(_value, multiple_results=True))
