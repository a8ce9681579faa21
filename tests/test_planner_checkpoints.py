"""Plans of steps that contain `jax.checkpoint`."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import scanrnn
from tests import step_table
from tests.compare import assert_same, value_and_gradients
from tests.jaxprs import equations
from tests.step_table import B, D, H, T

SAVED = jax.checkpoint_policies


@pytest.fixture(scope="module")
def arrays():
    """Two recurrent matrices, an input matrix, a carry and inputs."""
    shapes = {"U": (H, H), "V": (H, H), "W": (D, H), "h": (B, H), "xs": (T, B, D)}
    return step_table.arrays(jax.random.key(3), **shapes)


def cell(p, h, x):
    z = checkpoint_name(x @ p["W"] + h @ p["U"], "z")
    return jnp.tanh(z) * jax.nn.sigmoid(z)


def whole(p, h, x, **options):
    h = jax.checkpoint(cell, **options)(p, h, x)
    return h, 2 * h


def pointwise(p, h, x, **options):
    squashed = jax.checkpoint(lambda z: jnp.tanh(z) * jax.nn.sigmoid(z), **options)
    h = squashed(x @ p["W"] + h @ p["U"])
    return h, 2 * h


def product(p, h, x, **options):
    h = jnp.tanh(cell(p, h, x) + jax.checkpoint(cell, **options)(p, x, h))
    return h, 2 * h


def inputs(p, h, x, **options):
    h = jnp.tanh(jax.checkpoint(cell, **options)(p, x, x) + h @ p["U"])
    return h, 2 * h


names = SAVED.save_only_these_names("z")
# The step, the policy of its checkpoint, the plan's policy for residuals, and whether
# the planner looks inside the checkpoint.
CASES = {
    "whole": (whole, None, "chunked", True),
    "whole, nothing": (whole, SAVED.nothing_saveable, "chunked", True),
    "whole, products": (whole, SAVED.dots_saveable, "minimal", True),
    "whole, everything": (whole, SAVED.everything_saveable, "minimal", True),
    "whole, names": (whole, names, "minimal", False),
    "pointwise": (pointwise, None, "minimal", True),
    "pointwise, names": (pointwise, names, "minimal", False),
    "product": (product, None, "minimal", False),
    "product, products": (product, SAVED.dots_saveable, "minimal", True),
    "inputs": (inputs, None, "minimal", False),
}


@pytest.mark.parametrize("step, policy, kept, opened", CASES.values(), ids=CASES)
def test_checkpoint_means_what_its_author_says(arrays, step, policy, kept, opened):
    step = functools.partial(step, policy=policy)
    f, init, xs = functools.partial(step, arrays), arrays["h"], arrays["xs"]
    plan = scanrnn.plan(f, init, xs)
    assert plan.residuals == kept
    jaxpr = jax.make_jaxpr(functools.partial(scanrnn.scan, f))(init, xs).jaxpr
    policies = [e.params["policy"] for e in equations(jaxpr) if "policy" in e.params]
    assert (policy in policies) == (not opened)
    assert ("jax.checkpoint (its author says" in str(plan)) == (
        not opened and plan.reason is None
    )
    assert_same((step, arrays, init, xs), value_and_gradients)


@pytest.mark.parametrize("name", ["product", "inputs", "whole, names"])
def test_no_more_is_kept_than_by_lax_scan(arrays, name):
    step, policy, *_ = CASES[name]
    step = functools.partial(step, arrays, policy=policy)
    ours, theirs = scanrnn.plan(step, arrays["h"], arrays["xs"]).residual_bytes
    assert ours <= theirs


def test_a_mask_of_literals_does_not_count_as_moved():
    """Layers of a transformer: keeping the carries takes less memory than chunks do."""
    draw = jax.ShapeDtypeStruct

    @jax.checkpoint
    def layer(h, weights):
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), h @ h.T, -1e9)
        h = h + jax.nn.softmax(scores) @ (h @ weights["v"])
        return h + jnp.tanh(h @ weights["in"]) @ weights["out"], None

    sizes = {"v": (12, 4, 4), "in": (12, 4, 16), "out": (12, 16, 4)}
    weights = {name: draw(size, "f4") for name, size in sizes.items()}
    plan = scanrnn.plan(layer, draw((8, 4), "f4"), weights)
    assert plan.reason == "nothing in the step can be moved, merged or deferred"
