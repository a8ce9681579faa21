"""Step functions as users write them, not optimised: the planner must get them right.

A row is a function of a key that returns `(step, params, init, xs)`. With `params`
bound, `step(params, carry, x)` is a step for `lax.scan`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import sigmoid

T, B, D, H = 5, 3, 4, 4


def arrays(key, **shapes):
    keys = jax.random.split(key, len(shapes))
    return {
        name: 0.5 * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def weights(key, gates):
    return arrays(key, W=(D, gates * H), U=(H, gates * H), b=(gates * H,))


def sequence(key, *shape):
    return jax.random.normal(jax.random.fold_in(key, 1), (T, *(shape or (B, D))))


def start(key, n=1):
    keys = jax.random.split(jax.random.fold_in(key, 2), n)
    carries = tuple(jax.random.normal(k, (B, H)) for k in keys)
    return carries if n > 1 else carries[0]


def normalise(u):
    centred = u - u.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def lstm_pointwise(z, c):
    i, f, g, o = jnp.split(z, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(c), c


def lstm_like(pre, **extra):
    """An LSTM whose four pre-activations are `pre(params, x, h)`."""

    def make(key):
        def step(p, carry, x):
            h, c = carry
            h, c = lstm_pointwise(pre(p, x, h), c)
            return (h, c), h

        params = weights(key, 4) | arrays(jax.random.fold_in(key, 3), **extra)
        return step, params, start(key, 2), sequence(key)

    return make


lstm = lstm_like(lambda p, x, h: x @ p["W"] + h @ p["U"] + p["b"])
ln_lstm = lstm_like(
    lambda p, x, h: (
        normalise(x @ p["W"]) * p["g1"] + normalise(h @ p["U"]) * p["g2"] + p["b"]
    ),
    g1=(4 * H,),
    g2=(4 * H,),
)
mi_lstm = lstm_like(
    lambda p, x, h: (
        p["alpha"] * (x @ p["W"]) * (h @ p["U"])
        + p["beta1"] * (h @ p["U"])
        + p["beta2"] * (x @ p["W"])
        + p["b"]
    ),
    alpha=(4 * H,),
    beta1=(4 * H,),
    beta2=(4 * H,),
)
lstm_concatenated = lstm_like(
    lambda p, x, h: (
        jnp.concatenate([x, h], -1) @ jnp.concatenate([p["W"], p["U"]]) + p["b"]
    )
)


def lstm_per_gate(key):
    """Eight small matrix products a step, as in Flax's `LSTMCell`."""

    def step(p, carry, x):
        h, c = carry
        z = [x @ W + h @ U + b for W, U, b in p]
        h, c = lstm_pointwise(jnp.concatenate(z, -1), c)
        return (h, c), h

    params = [tuple(weights(k, 1).values()) for k in jax.random.split(key, 4)]
    return step, params, start(key, 2), sequence(key)


def lstm_sliced(key):
    """Gates are slices, and weights are transposed, as in code ported from torch."""

    def step(p, carry, x):
        h, c = carry
        z = x @ p["W"].T + h @ p["U"].T + p["b"]
        i, f = z[:, :H], z[:, H : 2 * H]
        g, o = z[:, 2 * H : 3 * H], z[:, 3 * H :]
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    params = arrays(key, W=(4 * H, D), U=(4 * H, H), b=(4 * H,))
    return step, params, start(key, 2), sequence(key)


def lstm_of_one_example(key):
    """Written for one example and mapped over the batch: features come first."""

    def cell(p, carry, x):
        h, c = carry
        h, c = lstm_pointwise(p["W"] @ x + p["U"] @ h + p["b"], c)
        return (h, c), h

    def step(p, carry, x):
        return jax.vmap(functools.partial(cell, p))(carry, x)

    params = arrays(key, W=(4 * H, D), U=(4 * H, H), b=(4 * H,))
    return step, params, start(key, 2), sequence(key)


def residual_lstm(key):
    step, params, init, xs = lstm(key)

    def residual(p, carry, x):
        carry, y = step(p, carry, x)
        return carry, x + y

    return residual, params, init, xs


def elman(key):
    def step(p, h, x):
        h = jnp.tanh(x @ p["W"] + h @ p["U"] + p["b"])
        return h, h

    return step, weights(key, 1), start(key), sequence(key)


def relu_rnn(key):
    def step(p, h, x):
        h = jax.nn.relu(p["W"].T @ x + p["U"].T @ h + p["b"])
        return h, h

    params = weights(key, 1)
    return step, params, jnp.zeros(H), sequence(key, D)


def gru(key):
    def step(p, h, x):
        xr, xz, xn = jnp.split(x @ p["W"] + p["b"], 3, -1)
        hr, hz, hn = jnp.split(h @ p["U"], 3, -1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        n = jnp.tanh(xn + r * (hn + p["bn"]))
        h = (1 - z) * n + z * h
        return h, h

    params = weights(key, 3) | arrays(jax.random.fold_in(key, 3), bn=(H,))
    return step, params, start(key), sequence(key)


def gru_reset_before(key):
    """Two matrix products in series: the candidate reads `r * h`."""

    def step(p, h, x):
        r, z = jnp.split(
            sigmoid(x @ p["W"][:, : 2 * H] + h @ p["U"][:, : 2 * H]), 2, -1
        )
        n = jnp.tanh(x @ p["W"][:, 2 * H :] + (r * h) @ p["U"][:, 2 * H :])
        h = (1 - z) * h + z * n
        return h, h

    return step, weights(key, 3), start(key), sequence(key)


def output_head(key):
    """The cell of the old forum thread: y is read from [x; h] before the update."""

    def step(p, h, x):
        z = jnp.concatenate([x, h], -1)
        return jnp.tanh(z @ p["A"] + p["a"]), z @ p["O"] + p["o"]

    params = arrays(key, A=(D + H, H), a=(H,), O=(D + H, 2), o=(2,))
    return step, params, start(key), sequence(key)


def krause_mlstm(key):
    def step(p, carry, x):
        h, c = carry
        m = (x @ p["Wm"]) * (h @ p["Um"])
        h, c = lstm_pointwise(x @ p["W"] + m @ p["U"] + p["b"], c)
        return (h, c), h

    extra = arrays(jax.random.fold_in(key, 3), Wm=(D, H), Um=(H, H))
    return step, weights(key, 4) | extra, start(key, 2), sequence(key)


def independent_rnn(key):
    def step(p, h, x):
        h = jnp.tanh(x @ p["W"] + p["u"] * h + p["b"])
        return h, h

    return step, arrays(key, W=(D, H), u=(H,), b=(H,)), start(key), sequence(key)


def linear_recurrence(key):
    def step(p, h, x):
        h = h @ p["U"] + x @ p["W"]
        return h, (h, x)

    return step, weights(key, 1), start(key), sequence(key)


def convolve(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def pictures(key):
    """The carry of a convolutional LSTM, and its inputs."""
    carry = arrays(jax.random.fold_in(key, 2), h=(B, 5, 2), c=(B, 5, 2))
    return tuple(carry.values()), sequence(key, B, 5, 2)


def convolutional(key):
    def step(p, carry, x):
        h, c = carry
        h, c = lstm_pointwise(convolve(x, p["W"]) + convolve(h, p["U"]) + p["b"], c)
        return (h, c), h

    params = arrays(key, W=(3, 2, 8), U=(3, 2, 8), b=(8,))
    return step, params, *pictures(key)


def convolutional_per_gate(key):
    """A convolution of [x, h] for every gate, channels first."""

    def gate(both, kernel):
        return lax.conv_general_dilated(both, kernel, (1,), "SAME")

    def step(p, carry, x):
        h, c = carry
        both = jnp.concatenate([x, h], axis=-2)
        z = [gate(both, p[name]) + p["b"] for name in "ifgo"]
        i, f, o = sigmoid(z[0]), sigmoid(z[1]), sigmoid(z[3])
        c = f * c + i * jnp.tanh(z[2])
        h = o * jnp.tanh(c)
        return (h, c), h

    params = arrays(key, **{name: (5, 10, 3) for name in "ifgo"}, b=(5, 1))
    return step, params, *pictures(key)


def attention(key):
    """The recurrent state attends to a memory, which is an input of each step."""

    def step(p, h, memory):
        scores = jax.nn.softmax(jnp.einsum("bh,bnh->bn", h @ p["U"], memory))
        h = jnp.tanh(jnp.einsum("bn,bnh->bh", scores, memory) + h @ p["U"])
        return h, scores

    return step, weights(key, 1), start(key), sequence(key, B, 2, H)


def outer_product(key):
    """Both operands of a contraction are recurrent (fast weights)."""

    def step(p, S, x):
        k, v = x @ p["W"], x @ p["U"]
        S = 0.9 * S + jnp.einsum("bi,bj->bij", k, v)
        S = jnp.einsum("bij,bjk->bik", S, S) * 0.1 + S
        return S, jnp.einsum("bij,bj->bi", S, k)

    return step, weights(key, 1), jnp.zeros((B, H, H)), sequence(key)


def with_cond(key):
    def step(p, h, x):
        grown = lax.cond(
            h.sum() > 0, lambda h: jnp.tanh(h @ p["U"]), lambda h: h * p["b"], h
        )
        h = jnp.tanh(x @ p["W"] + grown)
        return h, h.sum(-1)

    return step, weights(key, 1), start(key), sequence(key)


def with_while(key):
    """A `while` loop over a counter without gradient, and a loop over weights."""

    def step(p, h, x):
        n = lax.while_loop(lambda n: n < 3, lambda n: n + 1, jnp.int32(0))
        h = lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ p["U"] + x @ p["W"]), h)
        return h, h * n

    return step, weights(key, 1), start(key), sequence(key)


def nested_scan(key):
    def step(p, h, x):
        def inner(h, u):
            return jnp.tanh(h * u + x @ p["W"]), h.sum()

        h, sums = lax.scan(inner, h, p["U"])
        return h, (sums, lax.scan(inner, x, p["U"])[1])

    return step, weights(key, 1), start(key), sequence(key)


def with_top_k(key):
    def step(p, h, x):
        values, places = lax.top_k(h @ p["U"] + x @ p["W"], 2)
        h = jnp.tanh(h.at[:, :2].add(values)) * (1 + places.sum(-1, keepdims=True))
        return h / (1 + jnp.abs(h).max()), places

    return step, weights(key, 1), start(key), sequence(key)


def with_prng(key):
    """A typed key in the carry, a key for each step in xs, and a counter."""

    def step(p, carry, x):
        h, stream, count = carry
        x, own = x
        stream, now = jax.random.split(stream)
        x = x * jax.random.bernoulli(own, 0.5, x.shape)
        h = jnp.tanh(x @ p["W"] + h @ p["U"] + jax.random.normal(now, h.shape))
        return (h, stream, count + 1), (h, count, own)

    xs = sequence(key), jax.random.split(key, T)
    init = start(key), jax.random.key(7), 0
    return step, weights(key, 1), init, xs


def with_solve(key):
    def step(p, h, x):
        A = jnp.eye(H) * 3 + jnp.tanh(p["U"])
        h = jnp.linalg.solve(A, (h + x @ p["W"]).T).T
        return jnp.tanh(h), h

    return step, weights(key, 1), start(key), sequence(key)


def with_gather(key):
    """Integer xs and a table read inside the step."""

    def step(p, h, token):
        h = jnp.tanh(p["table"][token] @ p["W"] + h @ p["U"] + p["table"][token])
        return h, jnp.argmax(h, -1)

    params = weights(key, 1) | arrays(key, table=(6, D))
    xs = jax.random.randint(key, (T, B), 0, 6)
    return step, params, start(key), xs


def mixed_dtypes(key):
    """The step computes in another dtype than it carries."""

    def step(p, carry, x):
        h, total = carry
        z = x @ p["W"] + h.astype(x.dtype) @ p["U"] + p["b"]
        h = jnp.tanh(z).astype(jnp.float32)
        return (h, total + h.sum()), z.astype(jnp.float16)

    init = start(key).astype(jnp.float32), 0.0
    return step, weights(key, 1), init, sequence(key)


def complex_unit(key):
    def step(p, h, x):
        h = h * jnp.exp(1j * p["b"]) + x @ p["W"]
        return h, jnp.real(h * jnp.conj(h))

    return step, weights(key, 1), start(key).astype(complex), sequence(key)


def custom_rules(key):
    """Derivative rules of the user's own, one of each kind."""

    @jax.custom_vjp
    def clipped(w, h):
        return h @ w

    clipped.defvjp(
        lambda w, h: (h @ w, (w, h)),
        lambda res, ct: (res[1].T @ jnp.clip(ct, -1, 1), ct @ res[0].T),
    )

    def step(p, h, x):
        h = jnp.tanh(clipped(p["U"], h) + jax.nn.silu(x @ p["W"]) + p["b"])
        return h, jax.nn.relu(h)

    return step, weights(key, 1), start(key), sequence(key)


def stopped(key):
    def step(p, carry, x):
        h, target = carry
        h = jnp.tanh(x @ p["W"] + h @ lax.stop_gradient(p["U"]) + p["b"])
        target = 0.9 * target + 0.1 * lax.stop_gradient(h)
        return (h, target), ((h - target) ** 2).sum(-1)

    return step, weights(key, 1), start(key, 2), sequence(key)


def rematerialised(key):
    step, params, init, xs = lstm(key)
    return jax.checkpoint(step), params, init, xs


def weights_in_carry(key):
    """The params are part of the carry and never change; the planner finds weights."""

    def step(scale, carry, x):
        p, h = carry
        h = jnp.tanh(x @ p["W"] + h @ p["U"] + p["b"] * scale)
        return (p, h), h

    return step, jnp.array(0.5), (weights(key, 1), start(key)), sequence(key)


def shift_register(key):
    """Carries that are overwritten: by the last inputs, a constant, a weight."""

    def step(p, carry, x):
        last, older, _, _ = carry
        y = jnp.tanh(last @ p["W"] + older @ p["U"])
        return (x @ p["U"], last, p["b"], jnp.ones(2)), y

    init = (start(key), start(key), jnp.zeros(H), jnp.zeros(2))
    return step, weights(key, 1), init, sequence(key)


def without_xs(key):
    def step(p, h, x):
        assert x is None
        h = jnp.tanh(h @ p["U"] + p["b"])
        return h, {"h": h, "none": None, "two": 2.0}

    return step, weights(key, 1), start(key), None


def without_ys(key):
    def step(p, carry, x):
        h = jnp.tanh(x["a"] @ p["W"] + carry["h"] @ p["U"])
        return {"h": h, "n": carry["n"] + 1}, None

    xs = {"a": sequence(key), "unused": jnp.arange(T)}
    return step, weights(key, 1), {"h": start(key), "n": jnp.int32(0)}, xs


def pointwise(key):
    """Nothing to plan: no contraction, no weights."""

    def step(p, h, x):
        del p
        h = jnp.tanh(h + x)
        return h, h

    return step, {}, start(key), sequence(key)


_TOOLS = {"arrays", "weights", "sequence", "start", "normalise", "sigmoid"}
_TOOLS |= {"lstm_pointwise", "lstm_like", "convolve", "pictures"}
STEPS = {n: f for n, f in list(globals().items()) if callable(f) and n not in _TOOLS}

# The cells of the literature: exactly one contraction per step each way.
ONE_GEMM = (
    "lstm",
    "ln_lstm",
    "mi_lstm",
    "lstm_concatenated",
    "lstm_per_gate",
    "lstm_sliced",
    "lstm_of_one_example",
    "residual_lstm",
    "elman",
    "relu_rnn",
    "gru",
    "output_head",
)


@functools.cache
def build(name):
    return STEPS[name](jax.random.key(0))


def bound(scan, step, **options):
    """`(params, init, xs) -> (carry, ys)` under a scan."""

    def run(params, init, xs):
        return scan(functools.partial(step, params), init, xs, **options)

    return run
