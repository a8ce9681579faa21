"""A program whose details wait for the platform that it is lowered for.

What is traced is the program of the plan's machine. Where JAX lowers for another
platform, for several at once (`jax.export`), or for several devices, the same values
are computed by the program of that machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from scanrnn.machines import Machine, machine_for
from scanrnn.planner import compat
from scanrnn.planner.graph import struct_of

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
staged_p = Primitive("staged")
staged_p.multiple_results = True

# `(machine, alone) -> program`: for one device, or for several.
Build = Callable[[Machine, bool], Callable[..., list]]


def staged(build: Build, machine: Machine, plain: Callable, args: Sequence) -> list:
    """`build(machine, True)(*args)`, a list; its derivatives are those of `plain`.

    As with `jax.custom_jvp`, but under `vmap` the axis of a batch is the first one of
    each output of both: of a loop it depends on how the loop makes that output.
    """
    jaxpr = jax.make_jaxpr(build(machine, True))(*args)
    return staged_p.bind(*args, jaxpr=jaxpr, build=build, machine=machine, plain=plain)


def _value(*args, jaxpr, **_):
    return jaxpr_as_fun(jaxpr)(*args)


def _jvp(primals, tangents, *, plain, **_):
    at = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    some = [primals[i] for i in at], [tangents[i] for i in at]
    return jax.jvp(of_some(plain, primals, at), *some)


def _transpose(cts, *args, plain, **_):
    at = [i for i, a in enumerate(args) if ad.is_undefined_primal(a)]
    structs = [struct_of(args[i].aval) for i in at]
    full = list(map(ad.instantiate_zeros, cts))
    found = jax.linear_transpose(of_some(plain, args, at), *structs)(full)
    found = dict(zip(at, found, strict=True))
    return [found.get(i) for i in range(len(args))]


def of_some(f, args, at) -> Callable:
    """A function of its arguments at some places alone, the others given."""

    def of(*values):
        full = dict(enumerate(args)) | dict(zip(at, values, strict=True))
        return f(*full.values())

    return of


def _batched(args, axes, *, jaxpr, build, machine, plain):
    axes = tuple(axes)

    def batch(machine, alone):
        return jax.vmap(build(machine, alone), axes)

    fast = jax.make_jaxpr(jax.vmap(jaxpr_as_fun(jaxpr), axes))(*args)
    plain = jax.vmap(plain, axes)
    outs = staged_p.bind(*args, jaxpr=fast, build=batch, machine=machine, plain=plain)
    return outs, [0] * len(outs)


def _lowering(platform: str) -> Callable:
    def rule(ctx, *args, jaxpr, build, machine, plain):
        del plain
        alone, here = compat.on_one_device(ctx), machine
        if platform != machine.platform:
            here = machine_for(platform)
        if here.pins and compat.is_for_export(ctx):
            here = dataclasses.replace(here, names_layouts=False)
        same = here is machine and (alone or not machine.in_place)
        f = jaxpr_as_fun(jaxpr) if same else build(here, alone)
        return mlir.lower_fun(f, multiple_results=True)(ctx, *args)

    return rule


staged_p.def_impl(_value)
staged_p.def_abstract_eval(lambda *_, jaxpr, **__: jaxpr.out_avals)
ad.primitive_jvps[staged_p] = _jvp
ad.primitive_transposes[staged_p] = _transpose
batching.primitive_batchers[staged_p] = _batched
for name in PLATFORMS:
    mlir.register_lowering(staged_p, _lowering(name), platform=name)
mlir.register_lowering(staged_p, mlir.lower_fun(_value, multiple_results=True))
