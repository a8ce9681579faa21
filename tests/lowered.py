"""Print a digest of some lowered programs, to compare them between processes.

`python -m tests.lowered WASTE` first makes WASTE objects. So later objects have other
addresses, and variables, which are hashed by address, have other hashes.
"""

import functools
import hashlib
import sys

import jax
import jax.numpy as jnp

import scanrnn
from tests import step_table

# Sizes are large enough for norms in pieces. Nothing is compiled.
T, B, D, H = 64, 32, 128, 128
LARGE = ("ln_lstm", "mi_lstm")
# A step whose readout moves several values at once.
SMALL = ("shift_register",)


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def large(name):
    """A step of the table with its arguments, the sizes of the table scaled up."""
    step, *args = step_table.build(name)
    sizes = {step_table.T: T, step_table.B: B, step_table.D: D, 4 * D: 4 * H}
    grown = {n: sizes.get(n, n * D // step_table.D) for n in range(1, 64)}

    def grow(x):
        shape = tuple(grown[n] for n in x.shape)
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return step, *jax.tree.map(grow, args)


def loss(step, params, init, xs):
    carry, ys = scanrnn.scan(functools.partial(step, params), init, xs)
    return sum(jnp.sum(jnp.sin(out)) for out in jax.tree.leaves((carry, ys)))


def main(waste):
    wasted = [object() for _ in range(waste)]
    for name in (*LARGE, *SMALL):
        step, params, init, xs = (large if name in LARGE else step_table.build)(name)
        for f in (loss, jax.grad(loss, (1, 2, 3), allow_int=True)):
            text = jax.jit(f, static_argnums=0).lower(step, params, init, xs).as_text()
            print(name, hashlib.sha256(text.encode()).hexdigest())
    del wasted


if __name__ == "__main__":
    main(int(sys.argv[1]))
