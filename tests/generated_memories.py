"""Random steps whose states are larger than the values that are read from them.

A value has one of these types. Every operation says which types it takes and returns:

- `n` keys `[B, N]` and `d` features `[B, D]`
- `k` a chunk of keys `[B, C, N]` and `v` of features `[B, C, D]`
- `m` a memory `[B, N, D]`; the carries are memories

In a product, both operands may depend on the step, or one is a weight that all steps
share. Some products are larger than their operands.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

# In float64, a memory takes 48 KB for one step, and 12 MB for all steps. The hidden
# layer of a readout takes 8 KB a step. Because weights make it, it is computed for all
# steps at once, and so is its cotangent: one array more than in `lax.scan`.
T, B, C, N, D, WIDE = 256, 2, 8, 64, 48, 512
SHAPES = {"n": (B, N), "d": (B, D), "k": (B, C, N), "v": (B, C, D), "m": (B, N, D)}
WEIGHTS = {
    "nn": (N, N),
    "nd": (N, D),
    "dn": (D, N),
    "dd": (D, D),
    "up": (D, WIDE),
    "down": (WIDE, D),
    "rates": (N, D),
}


def unit(a):
    return a * jax.lax.rsqrt((a * a).sum(-1, keepdims=True) + 1.0)


def delta(w, m, n):
    key = unit(n)
    return m - jnp.einsum("bn,bd->bnd", key, jnp.einsum("bnd,bn->bd", m, key))


def attend(w, k, v):
    return jnp.tril(unit(k) @ unit(k).swapaxes(1, 2)) @ v * 0.3


# For each name: the types of the operands, the type of the result, and the function.
OPERATIONS = {
    "tanh_n": ("n", "n", lambda w, a: jnp.tanh(a)),
    "softmax": ("n", "n", lambda w, a: jax.nn.softmax(a)),
    "unit": ("d", "d", lambda w, a: unit(a)),
    "sigmoid": ("d", "d", lambda w, a: jax.nn.sigmoid(a)),
    "add_d": ("dd", "d", lambda w, a, b: a + b),
    "mul_n": ("nn", "n", lambda w, a, b: a * b),
    # Weights that all steps share.
    "mix_n": ("n", "n", lambda w, a: a @ w["nn"]),
    "project": ("n", "d", lambda w, a: jnp.tanh(a @ w["nd"])),
    "keys": ("d", "n", lambda w, a: a @ w["dn"]),
    "perceptron": ("d", "d", lambda w, a: jax.nn.relu(a @ w["up"]) @ w["down"]),
    "mix_v": ("v", "v", lambda w, a: a @ w["dd"]),
    "mix_m": ("m", "m", lambda w, a: a @ w["dd"]),
    # Products of two values of the same example.
    "outer": ("nd", "m", lambda w, a, b: jnp.einsum("bn,bd->bnd", a, b)),
    "broadcast": ("nd", "m", lambda w, a, b: a[:, :, None] * b[:, None, :]),
    "write": ("kv", "m", lambda w, a, b: a.swapaxes(1, 2) @ b * 0.2),
    "read": ("mn", "d", lambda w, m, a: jnp.einsum("bnd,bn->bd", m, a) * 0.1),
    "read_keys": ("md", "n", lambda w, m, a: jnp.einsum("bnd,bd->bn", m, a) * 0.1),
    "read_sum": ("mn", "d", lambda w, m, a: (m * a[:, :, None]).sum(1) * 0.1),
    "query": ("km", "v", lambda w, a, m: a @ m * 0.1),
    "attend": ("kv", "v", attend),
    "last": ("v", "d", lambda w, a: a[:, -1]),
    # Elementwise operations on the memory.
    "tanh_m": ("m", "m", lambda w, a: jnp.tanh(a)),
    "add_m": ("mm", "m", lambda w, a, b: a + 0.5 * b),
    "gate": ("mn", "m", lambda w, m, a: jax.nn.sigmoid(a)[:, :, None] * m),
    "rates": ("n", "m", lambda w, a: jnp.exp(-jnp.abs(a[:, :, None] * w["rates"]))),
    "decay": ("mm", "m", lambda w, a, b: a * jnp.exp(-jnp.abs(b))),
    "delta": ("mn", "m", delta),
}
READS = ("read", "read_keys", "read_sum", "query")
WRITES = ("outer", "broadcast", "write", "delta")


@st.composite
def memories(draw, size=4):
    """A program: sources, equations, the next carries, readouts and one or two outputs.

    The step writes into its memory, and reads it before or after that.
    """
    carries = draw(st.sampled_from(["m", "m", "mn", "mm", "md"]))
    inputs = "nd" + draw(st.sampled_from(["", "n", "d", "kv", "ndn", "m"]))
    types = {f"c{i}": kind for i, kind in enumerate(carries)}
    types |= {f"x{i}": kind for i, kind in enumerate(inputs)}
    sources = tuple(types.items())

    def operand(kind):
        # The newest values first, so that programs grow long rather than wide.
        return draw(st.sampled_from([v for v, k in types.items() if k == kind][::-1]))

    def equations(choices, letter):
        made = []
        for i, names in enumerate(choices):
            have = set(types.values())
            name = draw(st.sampled_from([n for n in names if set(_takes(n)) <= have]))
            made.append((name, tuple(operand(kind) for kind in _takes(name))))
            types[f"{letter}{i}"] = OPERATIONS[name][1]
        return tuple(made)

    anything = [tuple(OPERATIONS)] * draw(st.integers(0, size))
    made = equations([*anything, WRITES], "v")
    after = tuple(operand(kind) for kind in carries)
    types |= {f"a{i}": kind for i, kind in enumerate(carries)}
    small = tuple(n for n, row in OPERATIONS.items() if row[1] != "m")
    read = equations([READS] + [small] * draw(st.integers(0, 2)), "r")
    ys = [f"r{len(read) - 1}", *(["r0"] if draw(st.booleans()) else [])]
    return sources, made, after, read, tuple(dict.fromkeys(ys))


def _takes(name):
    return OPERATIONS[name][0]


def materialise(program, key):
    """The step of a program, its weights, initial carry and inputs."""
    sources, equations, after, readouts, ys = program
    keys = iter(jax.random.split(key, len(sources) + len(WEIGHTS)))

    def step(weights, carry, x):
        values = dict(zip(dict(sources), [*carry, *x], strict=True))

        def evaluate(equations, letter):
            for i, (operation, operands) in enumerate(equations):
                function = OPERATIONS[operation][2]
                values[f"{letter}{i}"] = function(weights, *map(values.get, operands))

        evaluate(equations, "v")
        # Memories fade, so that the rounding of one step does not grow.
        pairs = zip(carry, after, strict=True)
        carry = [0.9 * old + 0.1 * jnp.tanh(values[v]) for old, v in pairs]
        values.update((f"a{i}", value) for i, value in enumerate(carry))
        evaluate(readouts, "r")
        return carry, [values[v] for v in ys]

    weights = {
        name: jax.random.normal(next(keys), shape) * shape[0] ** -0.5
        for name, shape in WEIGHTS.items()
    }
    init = [
        jax.random.normal(next(keys), SHAPES[kind])
        for name, kind in sources
        if name[0] == "c"
    ]
    xs = [
        jax.random.normal(next(keys), (T, *SHAPES[kind]))
        for name, kind in sources
        if name[0] == "x"
    ]
    return step, weights, init, xs
