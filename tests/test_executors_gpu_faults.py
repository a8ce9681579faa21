"""Steps for which a kernel for a GPU was wrong, or crashed: now right, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import pallas_gpu
from tests.test_executors_lanes import assert_equal_to_lax_scan, gpu_that_is_not_there

NAME = pallas_gpu.NAME
KEYS = jax.random.split(jax.random.key(0), 3)
W, H = (jax.random.normal(key, (4, 4), "float32") for key in KEYS[:2])
XS = jax.random.normal(KEYS[2], (5, 4, 4), "float32")
# The next carry has the numbers of another lane, but axes of the same size.
MOVED = {
    "transposed": (lambda h, x: (jnp.tanh(h.T * W + x), h), H),
    "swapped": (lambda c, x: ((jnp.tanh(c[0] * W + x), c[0].T), c[1]), (H, 0.5 * H)),
    "set": (lambda c, x: ((jnp.tanh(c[0] * W + x), x.T), c[1]), (H, 0.5 * H)),
    "crossed": (lambda c, x: ((c[1] * W + x, jnp.sin(c[0].T)), c[0]), (H, 0.5 * H)),
}


@pytest.mark.parametrize("name", MOVED)
def test_carry_that_changes_its_lane_is_refused_or_right(name):
    step, init = MOVED[name]
    plan = scanrnn.plan(step, init, XS, machine="h100")
    (of_kernels,) = (c for c in plan.candidates if c.name == NAME)
    if of_kernels.refusal is None:
        assert_equal_to_lax_scan(lambda _: step, ({}, init, XS), rtol=1e-5)
    else:
        with pytest.raises(ValueError, match="cannot run this step"):
            scanrnn.scan(step, init, XS, implementation=NAME)


def test_loop_without_a_carry_is_planned_for_an_h100():
    def step(c, x):
        return c, jnp.sin(x) * 2

    assert scanrnn.plan(step, (), jnp.ones((4096, 3)), machine="h100")


@pytest.mark.parametrize("implementation", ["associative", None])
def test_steps_without_features_run(implementation):
    init, xs = jnp.zeros((2, 0)), jnp.zeros((9, 2, 0))

    def step(h, x):
        return h * jax.nn.sigmoid(x) + x, h

    end, ys = scanrnn.scan(step, init, xs, implementation=implementation)
    assert end.shape == (2, 0) and ys.shape == (9, 2, 0)
    assert scanrnn.plan(step, init, xs, machine="tpu v5e")


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("f", [jnp.maximum, jnp.minimum])
def test_booleans_have_a_maximum_in_a_kernel(f):
    init = jnp.zeros((4, 4), "float32"), jnp.zeros((4, 4), bool)

    def step(c, x):
        return (jnp.tanh(c[0] * W + x), f(c[1], x > 0)), c

    ours = scanrnn.scan(step, init, XS, implementation=NAME)
    wanted = lax.scan(step, init, XS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, wanted
    )
    assert_lowers(step, init, XS)


def assert_lowers(step, init, xs):
    """Triton has all operations of the kernel; the interpreter has more."""
    options = scanrnn.Options(machine="h100", implementation=NAME)
    with gpu_that_is_not_there():
        run = jax.jit(lambda c, xs: scanrnn.scan(step, c, xs, plan=options))
        text = run.trace(init, xs).lower(lowering_platforms=("cuda",)).as_text()
    assert "__gpu$xla.gpu.triton" in text


def relu(h, x):
    return jax.nn.relu(h * 0.9 + x), h


def clipped(h, x):
    return jnp.clip(h * 0.9 + x, -1.0, 1.0), h


@pytest.mark.parametrize("step", [relu, clipped])
def test_kernel_keeps_nan_where_triton_would_drop_it(step):
    """Triton's maximum of NaN and 0 is 0: the kernel asks which operands are NaN."""
    xs = XS.at[1, 2].set(jnp.nan)
    ours = scanrnn.scan(step, H, xs, implementation=NAME)
    np.testing.assert_array_equal(
        jnp.isnan(ours[1]), jnp.isnan(lax.scan(step, H, xs)[1])
    )
    traced = jax.make_jaxpr(
        lambda h, xs: scanrnn.scan(step, h, xs, implementation=NAME)
    )
    assert " ne " in str(traced(H, xs))


def test_largest_of_a_row_keeps_nan_in_a_kernel():
    init, xs = jnp.zeros((2, 16)), jnp.ones((3, 2, 16)).at[1, 0, 5].set(jnp.nan)
    ones = jnp.ones((16, 16))

    def step(h, x):
        h = jnp.tanh(h @ ones + x)
        return h, jnp.max(h, -1)

    ours = scanrnn.scan(step, init, xs, implementation=NAME)
    np.testing.assert_allclose(ours[1], lax.scan(step, init, xs)[1], 1e-5, 1e-6)
    traced = jax.make_jaxpr(
        lambda h, xs: scanrnn.scan(step, h, xs, implementation=NAME)
    )
    assert " ne " in str(traced(init, xs))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_product_of_whole_numbers_is_refused(dtype):
    init, xs = jnp.zeros((2, 16)), jnp.ones((3, 2, 16))
    w, ones = jnp.ones((16, 16), dtype), jnp.ones((16, 16))

    def step(h, x):
        more = (h * 8).astype(dtype) @ w
        return jnp.tanh(h @ ones + x + more.astype(x.dtype)), h

    with pytest.raises(ValueError, match=f"a product of {dtype}"):
        scanrnn.plan(step, init, xs, implementation=NAME)


def test_product_by_an_algorithm_that_triton_has_not_is_refused():
    init, xs, ones = jnp.zeros((2, 16)), jnp.ones((3, 2, 16)), jnp.ones((16, 16))
    algorithm = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32

    def step(h, x):
        h32, w32 = h.astype(jnp.float32), ones.astype(jnp.float32)
        more = lax.dot(h32, w32, precision=algorithm)
        return jnp.tanh(h @ ones + x + more.astype(x.dtype)), h

    with pytest.raises(ValueError, match="Triton has no product by ANY_F8"):
        scanrnn.plan(step, init, xs, implementation=NAME)


def test_product_of_whole_numbers_with_one_state_is_refused():
    init, xs = jnp.zeros((2, 2, 16, 16)), jnp.ones((3, 2, 2, 16, 16))
    gain = jnp.ones((16, 16))

    def step(S, x):
        whole = jnp.einsum("bhij,bhjk->bhik", S.astype("int32"), x.astype("int32"))
        return jnp.tanh(gain * S + whole.astype(S.dtype) + x), S.sum(-1)

    with pytest.raises(ValueError, match="a product of int32"):
        scanrnn.plan(step, init, xs, implementation=NAME)
