"""Outputs that `vmap` maps together.

Under `vmap` an output that no mapped input reaches is not mapped. A function with a
derivative rule must make each output in the same way as its rule; but a rule whose
tangents come from one program has all of them mapped if one is. So all outputs are.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

together_p = Primitive("together")
together_p.multiple_results = True


def together(outs: Sequence, inputs: Sequence) -> list:
    """The outs as they are, all of which `vmap` maps if it maps one of the inputs."""
    return together_p.bind(*outs, *inputs, count=len(outs))


def _outs(*args, count):
    return list(args[:count])


def _batched(args, axes, *, count):
    pairs = list(zip(args, axes, strict=True))
    size = next(a.shape[axis] for a, axis in pairs if axis is not None)
    outs = [
        jnp.broadcast_to(out, (size, *out.shape)) if axis is None else out
        for out, axis in pairs[:count]
    ]
    return together(outs, args[count:]), [axis or 0 for axis in axes[:count]]


def _jvp(primals, tangents, *, count):
    return together(primals[:count], primals[count:]), list(tangents[:count])


def _transpose(cts, *args, count):
    return [*cts, *[None] * (len(args) - count)]


together_p.def_impl(_outs)
together_p.def_abstract_eval(_outs)
ad.primitive_jvps[together_p] = _jvp
ad.primitive_transposes[together_p] = _transpose
batching.primitive_batchers[together_p] = _batched
mlir.register_lowering(together_p, mlir.lower_fun(_outs, multiple_results=True))
