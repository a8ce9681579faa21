"""Loops as other people write them, and the kind of each leaf of their carry.

A row is a function that returns a `Loop`. The kinds are those of the forward loop. A
leaf of the kind `S` runs step by step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

T, B, D = 7, 3, 4
C, SUM, DIA, BLOCK, MAX, LOG, S = (
    *("constant", "sum", "diagonal", "block", "max-plus", "log-sum-exp"),
    "sequential",
)
LOOPS = {}


class Loop(NamedTuple):
    """A loop: the kinds of its leaves, its step, its first carry, and its inputs."""

    kinds: tuple[str, ...]
    step: object
    init: object
    xs: object


def loop(*kinds):
    """Add a loop. It is made by a function of `draw(*shape)`, which draws normals."""

    def add(make):
        def made():
            generator = np.random.default_rng(0)
            draw = lambda *shape: jnp.asarray(generator.normal(size=shape))  # noqa: E731
            return Loop(kinds, *make(draw))

        LOOPS[make.__name__] = made
        return make

    return add


def flags(draw, *shape):
    return draw(*shape) > 0.8


# Rewards: agents.


@loop(DIA)
def discounted_returns(draw):
    def step(g, x):
        reward, done = x
        g = reward + 0.99 * g * (1 - done)
        return g, g

    return step, draw(B), (draw(T, B), flags(draw, T, B).astype(float))


@loop(DIA, C)
def advantages_purejaxrl(draw):
    def step(carry, transition):
        gae, next_value = carry
        done, value, reward = transition
        delta = reward + 0.99 * next_value * (1 - done) - value
        gae = delta + 0.99 * 0.95 * (1 - done) * gae
        return (gae, value), gae

    xs = flags(draw, T, B).astype(float), draw(T, B), draw(T, B)
    return step, (jnp.zeros(B), draw(B)), xs


@loop(C, DIA)
def advantages_brax(draw):
    """The carry holds the discount and the accumulator."""

    def step(carry, x):
        lambda_, acc = carry
        mask, delta, termination = x
        acc = delta + 0.97 * (1 - termination) * mask * lambda_ * acc
        return (lambda_, acc), acc

    xs = jnp.ones((T, B)), draw(T, B), flags(draw, T, B).astype(float)
    return step, (jnp.asarray(0.95), jnp.zeros(B)), xs


@loop(DIA)
def lambda_returns(draw):
    def step(acc, xs):
        reward, discount, value, lambda_ = xs
        acc = reward + discount * ((1 - lambda_) * value + lambda_ * acc)
        return acc, acc

    xs = draw(T), jnp.abs(draw(T)), draw(T), jnp.full(T, 0.9)
    return step, draw(), xs


@loop(DIA)
def v_trace(draw):
    def step(acc, x):
        error, discount, c = x
        acc = error + discount * c * acc
        return acc, acc

    xs = draw(T, B), jnp.abs(draw(T, B)), jnp.minimum(1.0, jnp.exp(draw(T, B)))
    return step, jnp.zeros(B), xs


@loop(DIA)
def retrace(draw):
    def step(acc, x):
        td, pc = x
        acc = td + pc * acc
        return acc, acc

    return step, jnp.zeros(B), (draw(T, B), draw(T, B))


@loop(DIA)
def eligibility_trace(draw):
    def step(trace, x):
        grad, reset = x
        trace = jnp.where(reset, grad, 0.9 * trace + grad)
        return trace, trace

    return step, draw(B, D), (draw(T, B, D), flags(draw, T, B, 1))


@loop(DIA, DIA)
def episode_statistics(draw):
    """A return and a length. Both are reset where an episode ends."""

    def step(carry, x):
        total, count = carry
        reward, done = x
        total, count = total + reward, count + 1
        return (total * (1 - done), count * (1 - done)), (total, count)

    init = jnp.zeros(B), jnp.zeros(B)
    return step, init, (draw(T, B), flags(draw, T, B).astype(float))


@loop(DIA, SUM)
def lengths(draw):
    """Steps after the end of a sequence change nothing."""

    def step(carry, x):
        h, t = carry
        h = jnp.where((t < jnp.array([7, 3, 0]))[:, None], 0.9 * h + x, h)
        return (h, t + 1), h

    return step, (draw(B, D), jnp.int32(0)), draw(T, B, D)


# Averages: optimisers, signals.


@loop(DIA)
def moving_average(draw):
    def step(m, x):
        m = 0.9 * m + 0.1 * x
        return m, m

    return step, draw(D), draw(T, D)


@loop(SUM, DIA, DIA)
def adam_moments(draw):
    def step(carry, g):
        count, m, v = carry
        count, m, v = count + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        m_hat = m / (1 - 0.9**count)
        v_hat = v / (1 - 0.999**count)
        return (count, m, v), m_hat / (jnp.sqrt(v_hat) + 1e-8)

    return step, (jnp.zeros(()), draw(D), jnp.abs(draw(D))), draw(T, D)


@loop(DIA)
def polyak(draw):
    def step(average, p):
        average = jax.tree.map(lambda a, b: a + 0.01 * (b - a), average, p)
        return average, average

    return step, draw(D), draw(T, D)


@loop(DIA)
def high_pass(draw):
    def step(low, x):
        low = low + 0.2 * (x - low)
        return low, x - low

    return step, draw(B), draw(T, B)


@loop(DIA, DIA)
def two_time_constants(draw):
    """The slow average follows the fast one, so one scan runs after the other."""

    def step(carry, x):
        slow, fast = carry
        slow, fast = 0.99 * slow + 0.01 * fast, 0.9 * fast + 0.1 * x
        return (slow, fast), slow

    return step, (draw(B), draw(B)), draw(T, B)


@loop(BLOCK, BLOCK)
def biquad(draw):
    """A filter of second order in transposed direct form: two coupled numbers."""

    def step(carry, x):
        s1, s2 = carry
        y = 0.2 * x + s1
        return (0.4 * x + 1.2 * y + s2, 0.2 * x - 0.5 * y), y

    return step, (draw(B), draw(B)), draw(T, B)


@loop(BLOCK)
def kalman_fixed_gain(draw):
    F, H, K = 0.5 * draw(4, 4), draw(2, 4), 0.1 * draw(4, 2)

    def step(mean, y):
        mean = F @ mean
        mean = mean + K @ (y - H @ mean)
        return mean, mean

    return step, draw(4), draw(T, 2)


@loop(BLOCK)
def state_space_of_each_channel(draw):
    A, b, c = 0.4 * draw(D, D), draw(D), draw(D)

    def step(h, x):
        h = jnp.einsum("ij,bj->bi", A, h) + x[:, None] * b
        return h, h @ c

    return step, draw(B, D), draw(T, B)


@loop(SUM)
def cumulative_sum(draw):
    def step(total, x):
        return total + x, total

    return step, draw(B), draw(T, B)


@loop(MAX)
def running_maximum(draw):
    def step(best, x):
        best = jnp.maximum(best, x)
        return best, best

    return step, draw(B), draw(T, B)


@loop(MAX)
def longest_path(draw):
    def step(score, x):
        gain, floor, reset = x
        score = jnp.where(reset, 0.0, jnp.maximum(score + gain, floor))
        return score, score

    return step, draw(B), (draw(T, B), draw(T, B), flags(draw, T, B))


@loop(LOG)
def probability_of_any_path(draw):
    """Probabilities of paths, summed by their logarithms."""

    def step(score, x):
        gain, new, reset = x
        score = jnp.where(reset, new, jnp.logaddexp(new, score + gain))
        return score, score

    return step, draw(B), (draw(T, B), draw(T, B), flags(draw, T, B))


# Memories: sequence models.


@loop(DIA)
def leaky_integrator(draw):
    a = draw(D)

    def step(h, x):
        h = jax.nn.sigmoid(a) * h + x
        return h, jnp.tanh(h)

    return step, draw(B, D), draw(T, B, D)


@loop(DIA)
def complex_diagonal(draw):
    rates = jnp.exp(-jnp.abs(draw(D)) + 1j * draw(D))

    def step(h, x):
        h = rates * h + x
        return h, jnp.real(h)

    return step, draw(B, D).astype(complex), draw(T, B, D)


@loop(BLOCK, BLOCK)
def rotation(draw):
    a, b = jnp.cos(draw(D)), jnp.sin(draw(D))

    def step(carry, x):
        re, im = carry
        re, im = a * re - b * im + x, b * re + a * im
        return (re, im), re

    return step, (draw(B, D), draw(B, D)), draw(T, B, D)


@loop(SUM, SUM)
def linear_attention(draw):
    def step(carry, x):
        kv, z = carry
        q, k, v = x
        kv = kv + k[..., :, None] * v[..., None, :]
        z = z + k
        y = jnp.einsum("bd,bde->be", q, kv) / jnp.einsum("bd,bd->b", q, z)[:, None]
        return (kv, z), y

    xs = tuple(jnp.exp(draw(T, B, D)) for _ in range(3))
    return step, (jnp.zeros((B, D, D)), jnp.zeros((B, D))), xs


@loop(DIA)
def selective_scan(draw):
    A = -jnp.exp(draw(D, 2))

    def step(h, x):
        u, dt, b, c = x
        h = jnp.exp(dt[..., None] * A) * h + (dt * u)[..., None] * b[:, None, :]
        return h, jnp.einsum("bdn,bn->bd", h, c)

    xs = draw(T, B, D), jnp.abs(draw(T, B, D)), draw(T, B, 2), draw(T, B, 2)
    return step, draw(B, D, 2), xs


@loop(DIA)
def retention(draw):
    decay = jnp.array([0.9, 0.5])

    def step(state, x):
        q, k, v = x
        state = decay[:, None, None] * state + jnp.einsum("bhi,bhj->bhij", k, v)
        return state, jnp.einsum("bhi,bhij->bhj", q, state)

    xs = tuple(draw(T, B, 2, 2) for _ in range(3))
    return step, draw(B, 2, 2, 2), xs


@loop(BLOCK)
def delta_rule(draw):
    """`S (I - b k k') + b v k'`: the rows are independent, the columns are coupled."""

    def step(memory, x):
        k, v, beta = x
        old = jnp.einsum("bij,bj->bi", memory, k)
        memory = memory + (beta[:, None] * (v - old))[..., None] * k[:, None, :]
        return memory, memory.sum(-1)

    xs = 0.5 * draw(T, B, D), draw(T, B, 2), jax.nn.sigmoid(draw(T, B))
    return step, draw(B, 2, D), xs


@loop(DIA)
def several_factors(draw):
    """The carry has an axis of size 1 where it is multiplied."""

    def step(h, x):
        h = (h[:, None] * x).reshape(B, 2, 1, D).sum((1, 2))
        return h, h

    return step, draw(B, D), draw(T, B, 2, D)


@loop(DIA)
def heads_by_reshape(draw):
    """The carry is split into heads and joined again."""

    def step(h, x):
        heads = h.reshape(B, 2, D // 2) * x[:, :2, None]
        h = heads.reshape(B, D) + x
        return h, h

    return step, draw(B, D), draw(T, B, D)


@loop(DIA)
def features_first(draw):
    def step(h, x):
        h = (h.T * x.T).T + x
        return h, h

    return step, draw(B, D), draw(T, B, D)


@loop(DIA, SUM, C)
def bookkeeping(draw):
    """A memory, an integer counter and the last input."""

    def step(carry, x):
        h, count, last = carry
        h = jnp.exp(-jnp.abs(last)) * h + x
        return (h, count + 1, x), (h, count)

    return step, (draw(B), jnp.int32(0), draw(B)), draw(T, B)


@loop(DIA, S)
def noise_from_a_key(draw):
    """Each step splits a key, and adds noise from it to a memory."""

    def step(carry, x):
        h, key = carry
        key, own = jax.random.split(key)
        h = 0.9 * h + x + jax.random.normal(own, h.shape, h.dtype)
        return (h, key), h

    return step, (draw(B), jax.random.key(0)), draw(T, B)


# Near misses.


@loop(S)
def logarithm_of_a_sum_and_a_maximum(draw):
    def step(h, x):
        h = jnp.maximum(jnp.logaddexp(h, x), 0.1 * x)
        return h, h

    return step, draw(B), draw(T, B)


@loop(S)
def square(draw):
    def step(c, x):
        c = 0.1 * c * c + x
        return c, c

    return step, draw(B), draw(T, B)


@loop(S)
def gate_that_reads_the_carry(draw):
    def step(h, x):
        f = jax.nn.sigmoid(x + h)
        h = f * h + (1 - f) * x
        return h, h

    return step, draw(B), draw(T, B)


@loop(S)
def argmax(draw):
    def step(h, x):
        h = 0.5 * h + x + jnp.argmax(h, axis=-1)[:, None]
        return h, h

    return step, draw(B, D), draw(T, B, D)


@loop(S)
def divided_by_the_carry(draw):
    def step(h, x):
        h = x / (1 + jnp.abs(h))
        return h, h

    return step, draw(B), draw(T, B)


@loop(S)
def reset_by_the_carry(draw):
    def step(h, x):
        h = jnp.where(h > 1, 0.0, h + x)
        return h, h

    return step, draw(B), draw(T, B)


@loop(S, S)
def two_that_meet(draw):
    def step(carry, x):
        a, b = carry
        return (a * b * 0.1 + x, 0.5 * b + a), a

    return step, (draw(B), draw(B)), draw(T, B)


@loop(S)
def clipped(draw):
    def step(h, x):
        h = jnp.clip(0.9 * h + x, -1, 1)
        return h, h

    return step, draw(B), draw(T, B)


@loop(S)
def stopped_gradient(draw):
    """The derivative of the step differs from that of its values."""

    def step(h, x):
        h = 0.9 * lax.stop_gradient(h) + x
        return h, h

    return step, draw(B), draw(T, B)


@loop(S)
def wide_matrix(draw):
    W = 0.2 * draw(12, 12)

    def step(h, x):
        h = h @ W + x
        return h, h

    return step, draw(B, 12), draw(T, B, 12)


@loop(S)
def peak_with_decay(draw):
    def step(h, x):
        h = jnp.maximum(0.9 * h, x)
        return h, h

    return step, draw(B), draw(T, B)
