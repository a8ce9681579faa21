"""Norms of whole sequences, differentiated in pieces: values and memory."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import _xla
from scanrnn.machines import MACHINES
from tests import step_table
from tests.compare import assert_same, score, value_and_gradients
from tests.jaxprs import loops
from tests.step_table import normalise
from tests.test_planner_transforms import TRANSFORMS
from tests.tiers import one_in

T, B, D, H = 6, 3, 4, 5


@pytest.fixture
def pieces(monkeypatch):
    """Use pieces for short sequences too."""
    one_byte = 1 / MACHINES["cpu"].fast_memory
    rules = dataclasses.replace(_xla.CPU, norm_share=one_byte)
    monkeypatch.setattr(_xla, "CPU", rules)


@pytest.fixture(scope="module")
def arrays():
    """Matrices, gains, a carry and inputs."""
    shapes = {"W": (D, 3 * H), "U": (H, 3 * H), "R": (D, H), "g": (3 * H,), "k": (D,)}
    shapes |= {"h": (B, H), "xs": (T, B, D)}
    return step_table.arrays(jax.random.key(5), **shapes)


def gates(h, z):
    r, u, n = jnp.split(z, 3, axis=-1)
    h = jax.nn.sigmoid(u) * h + jax.nn.sigmoid(r) * jnp.tanh(n)
    return h, h


def norm_of_a_product(p, h, x):
    return gates(h, normalise(x @ p["W"]) * p["g"] + normalise(h @ p["U"]))


def norm_before_a_product(p, h, x):
    """Two norms are hoisted: the first makes the input of a product with a norm."""
    return gates(h, normalise((normalise(x) * p["k"]) @ p["W"]) * p["g"] + h @ p["U"])


def norm_beside_a_product(p, h, x):
    """The loop reads a product and also the norm of this product."""
    z = x @ p["W"]
    h, y = gates(h, normalise(z) * p["g"] + h @ p["U"])
    return h, (y, jnp.tanh(z[:, :H]) * h)


def norm_over_the_batch(p, h, x):
    z = x @ p["W"]
    z = (z - z.mean(0)) / jnp.sqrt(z.var(0) + 1e-5)
    return gates(h, z * p["g"] + h @ p["U"])


def two_products_and_a_softmax(p, h, x):
    mixed = jax.nn.softmax(x @ p["R"]) * (x @ p["R"])
    return gates(h + mixed, x @ p["W"] * jnp.mean(mixed) + h @ p["U"])


def gains_used_twice(p, h, x):
    h, y = gates(h, normalise(x @ p["W"]) * p["g"] + (h @ p["U"]) * p["g"])
    return h, y * p["g"][:H]


STEPS = [
    norm_of_a_product,
    norm_before_a_product,
    norm_beside_a_product,
    norm_over_the_batch,
    two_products_and_a_softmax,
    gains_used_twice,
]


def made(step, arrays, length=T):
    return step, arrays, arrays["h"], arrays["xs"][:length]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("step", one_in(3, STEPS), ids=lambda step: step.__name__)
def test_norm_in_pieces_equals_lax_scan(arrays, step, reverse):
    assert_same(made(step, arrays), value_and_gradients, reverse=reverse)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_norm_in_pieces_of_any_length_equals_lax_scan(arrays, length):
    assert_same(made(norm_of_a_product, arrays, length), value_and_gradients)


@pytest.mark.slow
@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_norm_in_pieces_equals_lax_scan_under(arrays, transform):
    assert_same(made(norm_beside_a_product, arrays), transform)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("residuals", ["recompute", "chunked", "everything"])
def test_norm_in_pieces_with_policy_equals_lax_scan(arrays, residuals):
    plan = scanrnn.Options(residuals=residuals)
    assert_same(made(norm_of_a_product, arrays), value_and_gradients, plan=plan)


@pytest.mark.usefixtures("pieces")
def test_gradient_of_a_norm_runs_one_loop_more(arrays):
    """There is one loop more for each step of this module, because each has a norm."""

    def plain(p, h, x):
        return gates(h, x @ p["W"] + h @ p["U"])

    def count(step):
        def loss(p, h, xs):
            return score(scanrnn.scan(lambda h, x: step(p, h, x), h, xs))

        jaxpr = jax.make_jaxpr(jax.grad(loss))(arrays, arrays["h"], arrays["xs"])
        return len(list(loops(jaxpr.jaxpr)))

    counts = {step.__name__: count(step) for step in STEPS}
    assert set(counts.values()) == {count(plain) + 1}, counts


@pytest.mark.parametrize(
    ("length", "size"), [(30, 2), (33, 3), (31, None), (7, None), (4096, 2)]
)
def test_piece_is_a_divisor_of_the_length(length, size):
    """A step has 1 MB. If no divisor fits, the sequence is not cut."""
    assert piece(length, 2**18) == size


@pytest.mark.parametrize(
    ("width", "size"), [(2**20, 2), (2**16, 8), (2**10, 512), (2**7, None)]
)
def test_piece_fits_the_cache_unless_two_steps_do_not(width, size):
    assert piece(4096, width) == size


def piece(length, width):
    """The steps in a piece, by the plan, for a norm of `width` numbers a step."""

    weights, h, xs = (
        jnp.zeros(shape, "float32")
        for shape in [(4, width), (1, width), (length, 1, 4)]
    )

    def step(h, x):
        z = x @ weights
        return jnp.tanh(h * 0.5 + z / z.std(-1, keepdims=True)), None

    plan = scanrnn.plan(step, h, xs)
    size = plan.loop.norm_steps
    assert (f" pieces of {size} steps" in str(plan)) == bool(size)
    if size:
        assert (
            plan.bodies["of norms in reverse"].rows.length == plan.loop.length // size
        )
    return size


def test_gradient_of_a_norm_takes_less_than_half_of_lax_scans_memory():
    """The array is in float32 and just large enough for pieces."""
    steps, batch, size = 32, 64, 256
    structs = {"W": (size, 3 * size), "U": (size, 3 * size), "g": (3 * size,)}
    structs |= {"h": (batch, size), "xs": (steps, batch, size)}
    structs = {k: jax.ShapeDtypeStruct(s, "float32") for k, s in structs.items()}

    def taken(scan):
        def loss(p):
            _, ys = scan(lambda h, x: norm_of_a_product(p, h, x), p["h"], p["xs"])
            return jnp.mean(ys**2)

        compiled = jax.jit(jax.grad(loss)).lower(structs).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    ours, theirs = taken(scanrnn.scan), taken(lax.scan)
    assert ours < 0.5 * theirs
