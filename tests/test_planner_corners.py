"""Steps that once gave wrong results, each in its own way; they equal `lax.scan`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import scanrnn
from tests import step_table
from tests.compare import assert_same, score, value_and_gradients
from tests.test_planner_transforms import forward_over_reverse, jvp
from tests.tiers import one_in

T, B, D, H = 5, 3, 4, 6


@pytest.fixture(scope="module")
def arrays():
    """Two recurrent matrices, an input matrix, a carry and inputs."""
    shapes = {"U": (H, H), "V": (H, H), "W": (D, H), "h": (B, H), "xs": (T, B, D)}
    return step_table.arrays(jax.random.key(3), **shapes)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("links", [2, 3])
def test_carry_handed_on_from_slot_to_slot_equals_lax_scan(arrays, links, reverse):
    """The carry is a delay line, as in recurrent networks of a higher order."""

    def step(p, carry, x):
        past = sum(h * (k + 1) for k, h in enumerate(carry[1:]))
        h = jnp.tanh(x @ p["W"] + carry[0] @ p["U"] + past @ p["V"])
        return (h, *carry[:-1]), h

    carry = tuple(arrays["h"] * (k + 1) for k in range(links))
    make = step, arrays, carry, arrays["xs"]
    assert_same(make, value_and_gradients, reverse=reverse)
    assert_same(make, forward_over_reverse, reverse=reverse)


def test_constant_branch_of_a_scalar_select_has_no_tangent(arrays):
    def step(p, carry, x):
        h, s = carry
        h = jnp.tanh(x @ p["W"] + h @ p["U"])
        return (h, jnp.where(s > 0.4, s * 0.5, 5.0)), h * s

    make = step, arrays, (arrays["h"], jnp.asarray(1.0)), arrays["xs"]
    assert_same(make, jvp)
    assert_same(make, forward_over_reverse)


def test_carry_that_becomes_a_constant_equals_lax_scan(arrays):
    def step(p, carry, x):
        h, s = carry
        h = jnp.tanh(s * (x @ p["W"]) + h @ p["U"])
        return (h, 0.5), h * s

    make = step, arrays, (arrays["h"], jnp.asarray(1.0)), arrays["xs"]
    assert_same(make, value_and_gradients)
    assert_same(make, forward_over_reverse)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_carries_that_change_places_equal_lax_scan(arrays, reverse):
    def step(p, carry, x):
        a, b, h = carry
        h = jnp.tanh(x @ p["W"] + h @ p["U"] + (a * b) @ p["V"] + a)
        return (b, a, h), (a, h)

    carry = arrays["h"], 2 * arrays["h"], 3 * arrays["h"]
    make = step, arrays, carry, arrays["xs"]
    assert_same(make, value_and_gradients, reverse=reverse)
    assert_same(make, forward_over_reverse, reverse=reverse)


@jax.custom_vjp
def doubled(x):
    """tanh with twice its derivative, so that a rule that is applied twice shows."""
    return jnp.tanh(x)


doubled.defvjp(
    lambda x: (jnp.tanh(x), x), lambda x, g: (2 * g * (1 - jnp.tanh(x) ** 2),)
)
OWN_RULES = {
    "inputs": lambda p, h, x: jnp.tanh(doubled(x @ p["W"]) + h @ p["U"]),
    "recurrence": lambda p, h, x: doubled(x @ p["W"] + h @ p["U"]),
    "readout": lambda p, h, x: jnp.tanh(x @ p["W"] + doubled(h @ p["V"]) + h @ p["U"]),
}


@jax.custom_jvp
def surrogate(v):
    """A step function with a surrogate derivative, as in spiking networks."""
    return (v > 0).astype(v.dtype)


@surrogate.defjvp
def _(primals, tangents):
    (v,), (t,) = primals, tangents
    return (v > 0).astype(v.dtype), t / (1 + jnp.abs(v)) ** 2


@jax.custom_jvp
def gated(v, count, w):
    """The identity for its first operand, with an integer operand and its own rule."""
    return v, w * count


@gated.defjvp
def _(primals, tangents):
    v, count, w = primals
    t, _, u = tangents
    return (v, w * count), (3 * t * v, u * count + t)


JVP_RULES = {
    "surrogate": lambda p, h, x: surrogate(x @ p["W"] + h @ p["U"]) + 0.1 * h,
    "gated": lambda p, h, x: jnp.tanh(sum(gated(x @ p["W"], 2, h @ p["U"]))),
    "relu": lambda p, h, x: jax.nn.relu(x @ p["W"] + h @ p["U"]),
}


def third_derivative(loss, outputs):
    def along(f):
        return lambda x: jax.jvp(f, (x,), ([jnp.cos(leaf) for leaf in x],))[1]

    return jax.jit(jax.grad(along(along(loss))))


@pytest.mark.parametrize(
    "transform",
    [
        "value_and_gradients",
        "forward_over_reverse",
        "reverse_over_reverse",
        "third_derivative",
        "reverse_of_vmap",
    ],
)
@pytest.mark.parametrize("rule", one_in(3, JVP_RULES))
def test_custom_jvp_in_the_step_equals_lax_scan(arrays, rule, transform):
    def step(p, h, x):
        h = JVP_RULES[rule](p, h, x)
        return h, h

    assert_same((step, arrays, arrays["h"], arrays["xs"]), globals()[transform])


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [lambda h, v: h * v, lambda h, v: h + v, lambda h, v: h + jnp.sin(v)],
    ids=["times", "plus", "sine"],
)
@pytest.mark.parametrize("many", [False, True], ids=["row", "rows"])
def test_weight_read_at_an_integer_carry_has_its_gradient(arrays, many, read):
    def step(p, carry, x):
        h, i = carry
        row = p["V"][i if many else i[0]]
        h = jnp.tanh(x @ p["W"] + h @ p["U"] + read(h, row))
        return (h, (i + 1) % H), h

    make = step, arrays, (arrays["h"], jnp.arange(B)), arrays["xs"]
    assert_same(make, value_and_gradients)
    assert_same(make, forward_over_reverse)


def test_large_product_of_halves_keeps_its_type():
    U = jnp.full((256, 256), 0.01, jnp.bfloat16)

    def last(scan, h):
        def step(h, _):
            h = jnp.tanh(lax.dot_general(h, U, (((0,), (1,)), ((), ()))))
            return h, h

        return scan(step, h, None, 3)[0]

    h = jnp.full((256, 256), 0.5, jnp.bfloat16)
    got, wanted = (
        jax.jvp(functools.partial(last, scan), (h,), (h,))
        for scan in (scanrnn.scan, lax.scan)
    )
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=0.05, atol=1e-3)


def reverse_of_vmap(loss, outputs):
    def total(x):
        many = [jnp.stack([leaf, 0.5 * leaf]) for leaf in x]
        return jax.vmap(loss)(many).sum()

    return jax.jit(jax.grad(total))


def reverse_over_reverse(loss, outputs):
    return jax.jit(jax.grad(lambda x: score(jax.grad(loss)(x))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [value_and_gradients, reverse_of_vmap, reverse_over_reverse],
    ids=lambda t: t.__name__,
)
@pytest.mark.parametrize("where", OWN_RULES)
def test_custom_vjp_anywhere_in_the_step_equals_lax_scan(arrays, where, transform):
    def step(p, h, x):
        h = OWN_RULES[where](p, h, x)
        return h, doubled(h @ p["V"])

    assert_same((step, arrays, arrays["h"], arrays["xs"]), transform)


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
def test_output_that_nobody_asks_for_need_not_be_transposable(arrays, machine):
    """A `while_loop` on floats has no reverse mode, and this output needs none."""

    def loss(scan, U):
        def step(h, x):
            h = jnp.tanh(x @ arrays["W"] + h @ U)
            count = lax.while_loop(lambda s: s.max() > 0.01, lambda s: s * 0.5, h)
            return h, count

        h, counts = scan(step, arrays["h"], arrays["xs"])
        return jnp.sum(h), counts

    options = scanrnn.Options(machine=machine)
    got, wanted = (
        jax.jit(jax.grad(functools.partial(loss, scan), has_aux=True))(arrays["U"])
        for scan in (functools.partial(scanrnn.scan, plan=options), lax.scan)
    )
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_batched_stays_in_the_loop(arrays):
    struct = jax.ShapeDtypeStruct((B, H), float)

    def step(h, x):
        seen = jax.pure_callback(np.sin, struct, x @ arrays["W"])
        h = jnp.tanh(seen + h @ arrays["U"])
        return h, jax.pure_callback(np.sin, struct, h @ arrays["V"])

    got, wanted = (
        scan(step, arrays["h"], arrays["xs"]) for scan in (scanrnn.scan, lax.scan)
    )
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-9)


def test_ragged_contraction_keeps_the_gradients_of_lax_scan(arrays):
    groups = jnp.array([1, 2], jnp.int32)

    def step(p, h, x):
        return jnp.tanh(x @ p["W"] + lax.ragged_dot(h, p["R"], groups)), h

    params = {"W": arrays["W"], "R": jnp.stack([arrays["U"], arrays["V"]])}
    make = step, params, arrays["h"], arrays["xs"]
    assert_same(make, value_and_gradients)


def test_products_of_eight_bit_floats_keep_the_gradients_of_lax_scan(arrays):
    eight = jnp.float8_e4m3fn

    def loss(scan, W):
        def step(h, x):
            z = lax.dot_general(
                x.astype(eight),
                W.astype(eight),
                (((1,), (0,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            return jnp.tanh(z + h @ arrays["U"]), None

        return jnp.sum(scan(step, arrays["h"], arrays["xs"])[0])

    got, wanted = (
        jax.grad(functools.partial(loss, scan))(arrays["W"])
        for scan in (scanrnn.scan, lax.scan)
    )
    # lax.scan rounds the part of each step to three bits, a plan rounds their sum.
    np.testing.assert_allclose(got, wanted, rtol=0.1, atol=0.1)


def test_step_with_a_function_of_jax_is_planned_on_an_explicit_mesh(arrays):
    """The planner asks JAX to batch `softplus`, on types that name the mesh."""

    def step(h, x):
        h = jax.nn.softplus(x @ arrays["W"] + h @ arrays["U"])
        return h, h

    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        h = jax.device_put(arrays["h"], P("x", None))
        xs = jax.device_put(arrays["xs"], P(None, "x", None))
        got = jax.jit(functools.partial(scanrnn.scan, step))(h, xs)
        wanted = jax.jit(functools.partial(lax.scan, step))(h, xs)
    chex.assert_trees_all_close(got, wanted, rtol=1e-9)


@pytest.mark.parametrize("split", ["batch", "weights"])
def test_explicit_mesh_of_one_device_equals_lax_scan(arrays, split):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))

    def loss(scan, p, h, xs):
        def step(h, x):
            h = jnp.tanh(x @ p["W"] + lax.dot(h, p["U"], out_sharding=place))
            return h, h

        return score(scan(step, h, xs))

    with jax.set_mesh(mesh):
        place = P("x", None) if split == "batch" else P(None, None)
        time = P(None, *place)
        columns = P(None, "x") if split == "weights" else P(None, None)
        rows = P("x", None) if split == "weights" else P(None, None)
        p = {
            "W": jax.device_put(arrays["W"], P(None, None)),
            "U": jax.device_put(arrays["U"], rows),
            "V": jax.device_put(arrays["V"], columns),
        }
        h, xs = jax.device_put(arrays["h"], place), jax.device_put(arrays["xs"], time)
        got, wanted = (
            jax.jit(jax.grad(functools.partial(loss, scan), (0, 1, 2)))(p, h, xs)
            for scan in (scanrnn.scan, lax.scan)
        )
    for a, b in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_transpose_of_a_linear_scan_equals_that_of_lax_scan(arrays):
    def outputs(scan, xs):
        def step(h, x):
            h = x @ arrays["W"] + h @ arrays["U"]
            return h, h

        return scan(step, jnp.zeros((B, H)), xs)[1]

    ct = jnp.cos(jnp.arange(T * B * H)).reshape(T, B, H)
    got, wanted = (
        jax.linear_transpose(functools.partial(outputs, scan), arrays["xs"])(ct)
        for scan in (scanrnn.scan, lax.scan)
    )
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-9)


def test_transpose_of_a_pullback_equals_that_of_lax_scan(arrays):
    def outputs(scan, xs):
        def step(h, x):
            h = jnp.tanh(x @ arrays["W"] + h @ arrays["U"])
            return h, h

        return scan(step, arrays["h"], xs)[1]

    ct = jnp.ones((T, B, H))

    def pushed(scan):
        pull = jax.vjp(functools.partial(outputs, scan), arrays["xs"])[1]
        return jax.linear_transpose(lambda ct: pull(ct)[0], ct)(arrays["xs"])[0]

    np.testing.assert_allclose(pushed(scanrnn.scan), pushed(lax.scan), rtol=1e-9)


def test_weak_carry_stays_weak_where_lax_scan_keeps_it(arrays):
    def step(carry, x):
        s, h = carry
        h = jnp.tanh(x.astype(float) @ arrays["W"] + h @ arrays["U"])
        return (jnp.mean(h), h), s * x

    xs = arrays["xs"].astype(jnp.bfloat16)
    got, wanted = (
        scan(step, (1.0, arrays["h"]), xs) for scan in (scanrnn.scan, lax.scan)
    )
    assert got[1].dtype == wanted[1].dtype == jnp.bfloat16


def test_weak_float_is_not_cut_to_an_integer(arrays):
    def step(carry, x):
        s, h = carry
        return (jnp.int32(3), jnp.tanh(x @ arrays["W"] + h @ arrays["U"])), s * h

    with pytest.raises(TypeError, match="carry"):
        scanrnn.scan(step, (1.7, arrays["h"]), arrays["xs"])
