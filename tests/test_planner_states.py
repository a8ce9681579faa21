"""Steps whose state is larger than the values read from it: what stays in the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

import scanrnn
from scanrnn.executors import planned
from scanrnn.executors.run.pin import join_axes, pin_p
from scanrnn.machines import MACHINES
from scanrnn.planner.emit import emit
from scanrnn.planner.ir.ops import is_reduction
from tests.compare import assert_same, value_and_gradients
from tests.jaxprs import equations

T, B = 12, 2
draw = functools.partial(jax.random.normal, dtype=jnp.float32)


def selective_scan(D=64, N=16):
    """The step of Mamba, https://arxiv.org/abs/2312.00752."""
    rates = jnp.ones([D, N], jnp.float32)

    def step(h, row):
        x, dt, write, read = row
        new = (dt * x)[..., None] * write[:, None]
        h = jnp.exp(-dt[..., None] * rates) * h + new
        return h, jnp.einsum("bdn,bn->bd", h, read)

    return step, [B, D, N], [D, D, N, N]


def outer_products(N=32):
    """The step of RWKV, https://arxiv.org/abs/2404.05892."""
    bonus = jnp.ones([N], jnp.float32)

    def step(state, row):
        r, k, v, w = row
        new = jnp.einsum("bk,bv->bkv", k, v)
        y = jnp.einsum("bk,bkv->bv", r, state + bonus[:, None] * new)
        return w[..., None] * state + new, y

    return step, [B, N, N], [N, N, N, N]


def delta_rule(N=32):
    """The step of DeltaNet, https://arxiv.org/abs/2406.06484."""

    def step(state, row):
        q, k, v, rate = row
        new = rate * (v - jnp.einsum("bk,bkv->bv", k, state))
        state = state + jnp.einsum("bk,bv->bkv", k, new)
        return state, jnp.einsum("bk,bkv->bv", q, state)

    return step, [B, N, N], [N, N, N, 1]


STEPS = (selective_scan, outer_products, delta_rule)


def made(of, machine):
    step, state, rows = of()
    keys = jax.random.split(jax.random.key(0), len(rows))
    xs = [draw(key, [T, B, n]) for key, n in zip(keys, rows, strict=True)]
    init = jnp.zeros(state, jnp.float32)
    return scanrnn.plan(step, init, xs, machine=machine), init


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
@pytest.mark.parametrize("of", STEPS)
def test_state_larger_than_what_is_read_of_it_stays_in_the_loop(of, machine):
    plan, init = made(of, machine)
    stages = plan.stages
    crossing = [*stages.hoisted, *stages.loop.ys, *plan.derivative.cuts]
    assert max(v.aval.size for v in crossing) < init.size
    assert not [e for e in stages.after.eqns if e.primitive.name == "dot_general"]


@pytest.mark.parametrize("of", STEPS)
def test_state_is_all_that_is_kept_of_a_step(of):
    plan, init = made(of, "cpu")
    ours, theirs = plan.residual_bytes
    assert ours <= 1.1 * T * init.nbytes
    assert ours <= 0.7 * theirs


def test_readout_by_a_shared_matrix_leaves_the_loop_if_it_pays():
    def moved(features, outs):
        matrix = jnp.ones([features, outs], jnp.float32)

        def step(h, x):
            h = jnp.tanh(h + x[..., None])
            return h, h @ matrix

        args = jnp.zeros([8, 64, features]), jnp.ones([T, 8, 64])
        return bool(scanrnn.plan(step, *args).stages.after.eqns)

    assert moved(4, 512)
    assert not moved(64, 4)


def test_product_with_a_matrix_of_its_own_is_not_computed_again():
    """For all steps at once it is still one product for each step, in more memory."""
    rows, state = (
        jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in ([64, 16, 64, 128], [16, 128, 128])
    )

    def found(step, *xs):
        options = dict(machine="tpu v5e", implementation="planned")
        return scanrnn.plan(step, state, xs, **options).residuals

    def own(state, row):
        read, write, x = row
        new = jnp.tanh(x - read @ state)
        return state + write.swapaxes(-1, -2) @ new, new.sum(-1)

    def shared(state, row):
        return own(state, (jnp.ones([64, 128], jnp.float32), *row))

    assert found(own, rows, rows, rows) == "minimal"
    assert found(shared, rows, rows) == "recompute"


def test_trips_of_a_gpu_hold_no_more_than_four_megabytes_of_carries():
    gpu = planned.rules(MACHINES["h100"])
    found = [gpu.trips.block(60, carry) for carry in (2**10, 2**20, 2**22, 2**24)]
    assert found == [10, 4, 1, 1]
    found = [gpu.trips.block(64, carry, pointwise=True) for carry in (2**10, 2**20)]
    assert found == [32, 4]
    assert planned.rules(MACHINES["cpu"]).trips.block(60, 2**10) == 1


@pytest.mark.parametrize(("product", "steps"), [(False, 32), (True, 8)])
def test_trip_of_a_gpu_holds_more_steps_if_they_have_no_products(product, steps):
    matrix = jnp.ones((4, 4), "float32")

    def step(h, x):
        h = jnp.tanh(h @ matrix if product else h) + x
        return h, h

    types = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 4), (64, 8, 4)))
    plan = scanrnn.plan(step, *types, machine="h100", implementation="planned")
    bodies = emit(plan)
    assert {body.rows.trip_steps for body in bodies.values()} == {steps}


def test_small_rows_are_joined_where_that_fills_the_tiles_of_a_tpu():
    def joined(*shape):
        return join_axes(np.zeros(shape, np.float32), (8, 128, 16)).shape

    assert joined(5, 8, 16, 64) == (5, 8, 1024)
    assert joined(5, 16, 256) == (5, 16, 256)  # tiles are full
    assert joined(5, 8, 16) == (5, 8, 16)  # less than a tile
    assert joined(5, 64, 64, 64) == (5, 64, 64, 64)  # large


@pytest.mark.parametrize(("features", "pinned"), [(1, False), (4, True)])
def test_carry_of_a_tpu_is_pinned_unless_it_ends_in_an_axis_of_size_one(
    features, pinned
):
    def step(h, x):
        h = jnp.tanh(h) * x
        return h, h

    options = scanrnn.Options(machine="tpu v5e", implementation="planned")
    h, xs = (jnp.zeros((*lead, 8, features), "float32") for lead in ((), (16,)))
    run = functools.partial(scanrnn.scan, step, plan=options)
    pins = (e for e in equations(jax.make_jaxpr(run)(h, xs).jaxpr) if is_pin(e))
    assert any(e.invars[0].aval.shape == h.shape for e in pins) == pinned


def is_pin(eqn):
    return eqn.primitive is pin_p and eqn.params["lead"] == 0


@pytest.mark.parametrize("shape", [(3, 1, 4, 4), (1, 4, 5), (1, 1, 4, 1)])
def test_reductions_of_a_loop_on_a_cpu_read_no_axis_of_size_one(shape):
    def step(scale, S, x):
        read = (S * x).sum(-1, keepdims=True)
        S = scale * S + jnp.sin(read) * x - S.max((0, -2), keepdims=True)
        return S, (S * x).sum((-1, -2))

    keys = jax.random.split(jax.random.key(0))
    xs = jax.random.normal(keys[0], (5, *shape[:-2], 1, shape[-1]))
    make = step, jnp.asarray(0.5), jax.random.normal(keys[1], shape), xs
    assert_same(make, value_and_gradients)
    step = functools.partial(step, 0.5)
    plan = scanrnn.plan(step, *make[2:], machine="cpu", implementation="planned")
    for name, body in plan.bodies.items():
        read = [e.invars[0].aval for e in body.graph.eqns if is_reduction(e)]
        assert read, name
        assert not any(1 in a.shape for a in read), name


def loop_on(machine, step, init):
    """The planned loop of a step that reads 16 features of a batch of four."""
    args = step, init, jnp.ones([T, 4, 16])
    return scanrnn.plan(*args, machine=machine, residuals="minimal").loop


def test_costly_value_is_kept_for_the_reverse_loop_on_a_cpu():
    places = jnp.argwhere(jnp.ones([16, 16], bool))

    def step(carry, x):
        h, memory = carry
        gate = jax.nn.softplus(h[:, ::-1] + x)
        product = BCOO((jnp.ones(256), places), shape=(16, 16)) @ h.T
        memory = 0.9 * memory + h[:, :, None] * gate[:, None, :]
        read = jnp.einsum("bi,bij->bj", jnp.tanh(product.T), memory)
        return (jnp.tanh(gate * jax.nn.relu(read)), memory), None

    def kept(machine):
        loop = loop_on(machine, step, (jnp.zeros([4, 16]), jnp.zeros([4, 16, 16])))
        made = {v: e.primitive.name for e in loop.graph.eqns for v in e.outvars}
        next_memory = loop.graph.carry_out[1]
        names = [made[v] for v in loop.derivative.saved if v is not next_memory]
        return sorted(names), next_memory in loop.derivative.saved

    # What the tangent reads of `rev`, of `softplus` and of the sparse product.
    assert kept("cpu") == (["add", "custom_jvp_call", "dot_general", "tanh"], True)
    assert kept("h100") == (["dot_general"], False)


def test_costly_value_larger_than_carries_and_products_is_not_kept():
    """Those of 64 features, kept, took 21 times the temporaries, and no less time."""
    weights = jnp.ones([16, 16])

    def step(h, x):
        pairs = jax.nn.softplus((h @ weights)[:, :, None] + weights)
        return jnp.tanh((pairs**2).sum(1) + x), None

    saved = loop_on("cpu", step, jnp.zeros([4, 16])).derivative.saved
    assert saved
    assert {v.aval.shape for v in saved} == {(4, 16)}


def test_input_that_is_a_next_carry_is_not_kept_again():
    def step(carry, x):
        h, before, memory = carry
        memory = 0.9 * memory + h[:, :, None] * before[:, None, :]
        h = jnp.tanh(h + jnp.einsum("bi,bij->bj", x, memory))
        return (h, x, memory), None

    init = jnp.zeros([4, 16]), jnp.zeros([4, 16]), jnp.zeros([4, 16, 16])
    loop = loop_on("cpu", step, init)
    assert loop.graph.carry_out[2] in loop.derivative.saved
    assert not {*loop.derivative.saved} & {*loop.graph.xs}
