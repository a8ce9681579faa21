"""Every cell of `scanrnn.cells`, under `jax.lax.scan`: as it is, and accelerated."""

import inspect

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs._base import Program, normal
from scanrnn import cells

T, B, H = 64, 16, 128
PLACES, CHANNELS = (8, 8), 16  # of a picture

# Wrappers of a cell, here an LSTM, with their options.
WRAPPERS = {
    "residual": {},
    "highway": {},
    "zoneout": {"h": 0.1, "c": 0.1},
    "dropout": {"input": 0.2, "output": 0.2},
    "weight_drop": {"rate": 0.5},
    "learned_carry": {},
}


def factories() -> list[str]:
    """The public names of the factories of all cells."""
    return sorted(
        name
        for name, value in vars(cells).items()
        if inspect.isfunction(value)
        and inspect.signature(value).return_annotation is cells.Cell
    )


def _program(factory):
    make, options = getattr(cells, factory), WRAPPERS.get(factory)
    cell = make() if options is None else make(cells.lstm(), **options)
    pictures = cell.num_feature_axes > 1
    sizes = f"T={T} B={B} D={H} H={H}"
    shape, features = (T, B, H), H
    if pictures:
        sizes = f"T={T} B={B} {'x'.join(map(str, PLACES))} C={CHANNELS} F={CHANNELS}"
        shape, features = (T, B, *PLACES, CHANNELS), CHANNELS
    params = cell.init(jax.random.key(0), features, features)

    def apply(params, inputs):
        xs, key = inputs
        step, rows = cell.prepare(params, xs, key)
        carry = cell.initial_carry(params, xs[0], jnp.float32)
        return lax.scan(step, carry, rows)[1]

    return Program(sizes, params, (normal(*shape), jax.random.key(1)), apply)


PROGRAMS = {f"cells.{name}": lambda name=name: _program(name) for name in factories()}
