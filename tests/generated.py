"""Random step functions: small programs, drawn one equation at a time.

Values are square `[N, N]` matrices, so that every operation fits every operand. Drawn
programs mix carries, inputs, weights and everything that is computed from them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

N, T = 2, 3


def squash(a):
    return jnp.tanh(a)


def norm(a):
    centred = a - a.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1.0)


def choose(a, b):
    return lax.cond(a.sum() > 0, lambda: a * 0.5, lambda: jnp.tanh(b))


def inner_scan(a, b):
    def step(c, row):
        return jnp.tanh(c + row @ b), c.sum()

    return lax.scan(step, a, b)[0]


def countdown(a, b):
    return lax.fori_loop(0, 2, lambda _, v: jnp.tanh(v + b), a)


def halves(a, b):
    left, _ = jnp.split(a, 2, -1)
    _, right = jnp.split(b, 2, -1)
    return jnp.concatenate([left, right], -1)


def joined_dot(a, b):
    return jnp.concatenate([a, b], -1) @ jnp.concatenate([b, a], 0) * 0.3


def clipped(a):
    return jnp.where(a > 0.1, a, 0.2 * a)


UNARY = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "exp": lambda a: jnp.exp(-jnp.abs(a)),
    "norm": norm,
    "transpose": lambda a: a.T,
    "softmax": jax.nn.softmax,
    "stop": lax.stop_gradient,
    "clipped": clipped,
    "rows": lambda a: a[::-1],
    "sum": lambda a: jnp.broadcast_to(a.sum(0), a.shape) * 0.5,
    "cast": lambda a: a.astype(jnp.float64) * 0.5 - 1.0,
    "sorted": lambda a: jnp.sort(a, -1),
}
BINARY = {
    "dot": lambda a, b: a @ b * 0.5,
    "dot_again": lambda a, b: jnp.tanh(a) @ b,
    "transposed_dot": lambda a, b: (b.T @ a.T).T * 0.5,
    "joined_dot": joined_dot,
    "add": lambda a, b: a + b,
    "add_again": lambda a, b: b + a * 0.5,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (1.5 + jnp.tanh(b)),
    "halves": halves,
    "where": lambda a, b: jnp.where(a > b, a, b * 0.5),
    "row": lambda a, b: a + b[0],
    "column": lambda a, b: a * b[:, :1],
    "cond": choose,
    "scan": inner_scan,
    "fori": countdown,
}
# What a kernel for a GPU has. Its products are by weights, and keep the batch apart.
BY_WEIGHTS = ("dot", "dot_again")
ON_A_GPU = (
    *("tanh", "sigmoid", "relu", "exp", "norm", "softmax", "stop", "clipped", "cast"),
    *("add", "add_again", "sub", "mul", "div", "halves", "where", *BY_WEIGHTS * 3),
)


@st.composite
def programs(draw, size=8, operations=(*UNARY, *BINARY), by_weights=(), least=1):
    """A program: sources, then equations `(operation, operand, operand)`.

    It has from `least` to `size` equations.
    The second operand of the operations in `by_weights` is a weight.
    """
    sources = [f"{kind}{i}" for kind in "cxw" for i in range(draw(st.integers(1, 2)))]
    equations = []
    for i in range(draw(st.integers(least, size))):
        names = sources + [f"v{j}" for j in range(i)]
        # The newest values first, so that programs grow long rather than wide.
        operand = st.sampled_from(names[::-1])
        operation = draw(st.sampled_from(operations))
        of_weights = st.sampled_from([s for s in sources if s[0] == "w"])
        second = of_weights if operation in by_weights else operand
        equations.append((operation, draw(operand), draw(second)))
    made = [f"v{j}" for j in range(len(equations))]
    anything = st.sampled_from(made[::-1] + sources)
    carries = [s for s in sources if s[0] == "c"]
    after = [draw(anything) for _ in carries]
    ys = [draw(anything) for _ in range(draw(st.integers(0, 2)))]
    return sources, tuple(equations), tuple(after), tuple(ys)


def materialise(program, key, size=N):
    """The step of a program, its weights, initial carry and inputs.

    Matrices have `size` rows, and numbers such that a product by one is as large.
    """
    sources, equations, after, ys = program
    keys = dict(zip(sources, jax.random.split(key, len(sources)), strict=True))

    def draw(name, *shape):
        made = 0.7 * jax.random.normal(keys[name], (*shape, size, size))
        return made * (N / size) ** 0.5 if name[0] == "w" else made

    def step(weights, carry, x):
        named = {"w": weights, "c": carry, "x": x}
        values = {name: named[name[0]][int(name[1:])] for name in sources}
        for i, (operation, a, b) in enumerate(equations):
            if operation in UNARY:
                values[f"v{i}"] = UNARY[operation](values[a])
            else:
                values[f"v{i}"] = BINARY[operation](values[a], values[b])
        # Carries stay bounded for every drawn program.
        return [squash(values[v]) for v in after], [values[v] for v in ys]

    groups = [[draw(s) for s in sources if s[0] == kind] for kind in "wc"]
    xs = [draw(s, T) for s in sources if s[0] == "x"]
    return step, *groups, xs


def stacked(layers, key):
    """The step of several programs, the layers: each reads values of the one before.

    Its inputs are the next carry times a weight of its own, the carry, and the outputs
    of the layer before. The first layer reads the inputs of all steps.
    """
    keys = jax.random.split(key, len(layers))
    made = [materialise(p, k) for p, k in zip(layers, keys, strict=True)]
    steps, weights, init, xs = zip(*made, strict=True)

    def step(weights, carry, x):
        after, ys, given = [], [], x
        for f, w, c, inputs in zip(steps, weights, carry, xs, strict=True):
            given = [given[0] @ w[0], *given[1:]]
            given = [given[i % len(given)] for i in range(len(inputs))]
            new, out = f(w, c, given)
            given = [new[0], c[-1], *out]
            after.append(new)
            ys += out
        return after, ys

    return step, list(weights), list(init), xs[0]
