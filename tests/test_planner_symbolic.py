"""Steps with sizes that are symbols, as in an export for any batch."""

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.planner import trace
from scanrnn.planner.parallel import affine


def descent(w, batch):
    """A step of gradient descent: the weights have no axis of the batch."""
    x, target = batch
    error = x @ w - target
    return w - 0.1 * (error @ x), error.sum()


def largest(h, batch):
    (x,) = batch
    return jnp.maximum(jnp.broadcast_to(h, x.shape), x).max(0), h


def memory(S, batch):
    keys, values = batch
    new = 0.9 * S + keys.T @ values
    return new, jnp.ones(4) @ new


# The step, the shape of its carry, and the shapes of its inputs for one example.
STEPS = {
    "descent": (descent, (4,), [(4,), ()]),
    "largest": (largest, (4,), [(4,)]),
    "memory": (memory, (4, 3), [(4,), (3,)]),
}


def structs(carry, rows):
    (b,) = jax.export.symbolic_shape("b")
    xs = [jax.ShapeDtypeStruct((5, b, *row), "float64") for row in rows]
    return jax.ShapeDtypeStruct(carry, "float64"), xs


@pytest.mark.parametrize("machine", ["cpu", "h100"])
@pytest.mark.parametrize("name", STEPS)
def test_step_with_a_symbolic_batch_and_a_carry_without_one_is_exported(name, machine):
    step, carry, rows = STEPS[name]
    plan = scanrnn.Options(machine=machine)
    planned = jax.jit(lambda init, xs: scanrnn.scan(step, init, xs, plan=plan))
    exported = jax.export.export(planned)(*structs(carry, rows))
    init, keys = jnp.ones(carry), jax.random.split(jax.random.key(0), len(rows))
    shapes = zip(keys, rows, strict=True)
    xs = [jax.random.normal(key, (5, 3, *row)) for key, row in shapes]
    got, want = exported.call(init, xs), lax.scan(step, init, xs)
    chex.assert_trees_all_close(got, want, rtol=1e-12)


def test_leaf_that_meets_a_symbolic_size_on_its_way_is_sequential():
    _, carry, rows = STEPS["descent"]
    traced = trace(descent, *structs(carry, rows), None)
    (group,) = affine.groups(traced.graph)
    assert (group.kind, group.why) == ("sequential", "sizes that are not known")
