"""The loops, and the ways to run them."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import scanrnn
from benchmarks.parallel import by_hand
from benchmarks.programs import advantages as agents
from benchmarks.programs._base import Program, normal
from scanrnn import cells

SCAN, PLANNED, OURS = "lax.scan", "planned loops", "in parallel"
HAND, CHUNKS = "associative_scan by hand", "chunks by hand"
FORMS = SCAN, PLANNED, OURS, HAND, CHUNKS
PRODUCTS = "products of chunks"
HEADS = 4  # of a cell with matrix memories


class Loop(NamedTuple):
    """A loop with its data.

    Attributes:
      program: the loop under `jax.lax.scan`.
      hand: `hand(affine)` is the same function, `affine(a, b, reverse)` its recurrence;
        None if that is not written.
      memory: whether its carry is a matrix memory.
    """

    program: Program
    hand: Callable[[Callable], Callable] | None
    memory: bool = False


def leaky_sum(T: int, B: int, D: int, draw: Any = normal) -> Loop:
    """`h = a h + x` with resets to a carry that is learned."""
    params = {"decay": draw(D), "scale": draw(D), "init": draw(D)}
    inputs = draw(T, B, D), draw(T, B, 1)

    def made(params, inputs):
        xs, noise = inputs
        return jax.nn.sigmoid(3 + params["decay"]), params["scale"] * xs, noise > 2

    def apply(params, inputs):
        keep, xs, resets = made(params, inputs)

        def step(h, x):
            x, reset = x
            h = jnp.where(reset, params["init"], keep * h) + x
            return h, h

        return lax.scan(step, jnp.zeros_like(xs[0]), (xs, resets))[1]

    def hand(affine):
        def run(params, inputs):
            keep, xs, resets = made(params, inputs)
            b = jnp.where(resets, params["init"], 0.0) + xs
            return affine(jnp.broadcast_to(jnp.where(resets, 0.0, keep), b.shape), b)

        return run

    return Loop(Program(f"T={T} B={B} D={D}", params, inputs, apply), hand)


def _layer(
    name: str,
    hand: Callable | None,
    T: int,
    B: int,
    D: int,
    draw: Any = normal,
    *,
    memory: bool = False,
    **options: Any,
) -> Loop:
    """A cell of ours under `lax.scan`."""
    cell = getattr(cells, name)(**options)
    params = cell.init(jax.random.key(0), D, D)

    def apply(params, xs):
        step = functools.partial(cell.step, params)
        return lax.scan(step, cell.initial_carry(params, xs[0]), xs)[1]

    sizes = f"T={T} B={B} D={D} H={D}"
    return Loop(Program(sizes, params, draw(T, B, D), apply), hand, memory)


def _mingru(affine):
    def run(params, xs):
        z, candidate = jnp.split(xs @ params["kernel"] + params["bias"], 2, -1)
        return affine(jax.nn.sigmoid(-z), jax.nn.sigmoid(z) * candidate)

    return run


def _lru(affine):
    def run(params, xs):
        a = jnp.exp(-jnp.exp(params["nu"]) + 1j * jnp.exp(params["theta"]))
        re, im = jnp.split(xs @ params["kernel"], 2, -1)
        b = jnp.exp(params["gamma"]) * lax.complex(re, im)
        h = affine(jnp.broadcast_to(a, b.shape), b)
        y = jnp.concatenate([h.real, -h.imag], -1) @ params["readout"]
        return y + xs @ params["skip"]

    return run


def _sru(affine):
    def run(params, xs):
        candidate, f, r = jnp.split(xs @ params["kernel"], 3, -1)
        b_f, b_r = jnp.split(params["bias"], 2)
        f, r = jax.nn.sigmoid(f + b_f), jax.nn.sigmoid(r + b_r)
        return r * affine(f, (1 - f) * candidate) + (1 - r) * math.sqrt(3) * xs

    return run


def advantages(estimate, T: int, B: int, D: int, draw: Any = normal) -> Loop:
    """Generalised advantage estimation, after a small network for the values.

    Args:
      estimate: the loop of an agent.
      T: steps.
      B: environments.
      D: features of the network.
      draw: not used: the program of agents has its own numbers.
    """
    del draw

    def hand(affine):
        def run(params, inputs):
            observations, rewards, dones = inputs
            values = jnp.tanh(observations @ params["w"]) @ params["v"]
            goes_on = 1 - dones.astype(jnp.float32)
            delta = rewards + agents.GAMMA * values[1:] * goes_on - values[:-1]
            if estimate is agents.brax:
                delta = delta.at[-1].set(0.0)
            return affine(agents.GAMMA * agents.LAMBDA * goes_on, delta, True)

        return run

    return Loop(agents.advantages(T, B, D, D, estimate), hand)


LOOPS = {
    "leaky sum with resets": leaky_sum,
    "minGRU": functools.partial(_layer, "mingru", _mingru),
    "LRU": functools.partial(_layer, "lru", _lru),
    "SRU": functools.partial(_layer, "sru", None),
    "SRU without peepholes": functools.partial(_layer, "sru", _sru, peephole=False),
    "advantage estimation (PureJaxRL)": functools.partial(advantages, agents.purejaxrl),
    "advantage estimation (Brax)": functools.partial(advantages, agents.brax),
}
BY_HAND = set(LOOPS) - {"SRU"}
MEMORIES = {
    name: functools.partial(_layer, factory, None, memory=True, heads=HEADS)
    for name, factory in (
        ("mLSTM", "mlstm"),
        ("gated linear attention", "gla"),
        ("Mamba-2", "mamba2"),
        ("DeltaNet", "deltanet"),
        ("gated DeltaNet", "gated_deltanet"),
        ("RWKV-7", "rwkv7"),
    )
}
_EXECUTORS = {OURS: "associative", PRODUCTS: "chunkwise"}


def function(loop: Loop, form: str, machine: str | None = None) -> Callable:
    """`apply(params, inputs)` of a loop, run in one way.

    Args:
      loop: the loop.
      form: the way to run it. On this machine, `PLANNED` is what the planner chooses,
        except for a matrix memory.
      machine: the machine that it is for; None for this one.
    """
    if form == SCAN:
        return loop.program.apply
    if form == HAND:
        return loop.hand(by_hand.affine)
    if form == CHUNKS:
        return loop.hand(by_hand.in_chunks)
    planned = "planned" if machine or loop.memory else None
    implementation = _EXECUTORS.get(form, planned)
    options = scanrnn.Options(machine=machine, implementation=implementation)
    return scanrnn.accelerate(loop.program.apply, plan=options)
