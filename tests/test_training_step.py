"""The guarded step: compared with plain optax, and each fault with its remedy."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.dynamic_scale import DynamicScale

import scanrnn
from scanrnn.training import FAULTS, Precision, init_state, make_train_step
from scanrnn.training._gradients import rescale

KEY = jax.random.key(0)
FLOAT32 = {jnp.dtype(jnp.float32)}


def quadratic(params, carry, batch, key):
    """A loss of which a batch can make each part non-finite."""
    outputs = params["w"] * batch["x"]
    loss = jnp.sum(outputs**2) + batch["loss"]
    return loss, (jax.tree.map(lambda c: c + 1, carry), outputs * batch["output"])


def batch(**changes):
    ones = {"x": jnp.ones(3), "loss": jnp.zeros([]), "output": jnp.ones(3)}
    return ones | {name: jnp.asarray(value) for name, value in changes.items()}


def start(optimizer, **options):
    params = {"w": jnp.arange(1.0, 4.0)}
    return init_state(params, optimizer, carry=jnp.zeros(2), key=KEY, **options)


def copied(tree):
    return jax.tree.map(np.array, tree._replace(key=jax.random.key_data(tree.key)))


def test_step_is_that_of_optax_where_all_is_finite():
    optimizer, reference = optax.adam(0.1), optax.adam(0.1)
    step = make_train_step(quadratic, optimizer, clip=1.0)
    state = start(optimizer)
    params = {"w": jnp.arange(1.0, 4.0)}
    chained = optax.chain(optax.clip_by_global_norm(1.0), reference)
    opt_state = chained.init(params)
    for number in range(5):
        grads = jax.grad(lambda p: quadratic(p, 0, batch(), KEY)[0])(params)
        norm = optax.tree.norm(grads)
        updates, opt_state = chained.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        state, metrics = step(state, batch())
        np.testing.assert_allclose(metrics.grad_norm, norm, rtol=1e-12)
        np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-12)
        assert float(metrics.clip_fraction) == 1.0 and not metrics.skipped
        np.testing.assert_array_equal(state.carry, number + 1.0)


FAULTY = {
    "forward": {"output": [1.0, np.nan, 1.0]},
    "loss": {"loss": np.inf},
    "gradient": {"x": [1.0, 1e153, 1.0]},  # its square is finite, the norm's is not
}


@pytest.mark.parametrize("fault", FAULTY)
def test_step_skips_what_is_not_finite_and_touches_nothing(fault):
    optimizer = optax.adam(0.1)
    step = make_train_step(quadratic, optimizer, clip=1.0)
    state, _ = step(start(optimizer), batch())
    before = copied(state)
    state, metrics = step(state, batch(**FAULTY[fault]))
    assert FAULTS[int(metrics.fault)] == fault and bool(metrics.skipped)
    after = copied(state)
    for name in ("params", "opt_state", "carry", "key"):
        chex.assert_trees_all_equal(getattr(before, name), getattr(after, name))
    state, metrics = step(state, batch(**FAULTY[fault]))
    assert int(metrics.in_row) == 2
    state, metrics = step(state, batch())
    assert int(metrics.in_row) == 0 and int(metrics.fault) == 0
    assert [int(count) for count in state.counts] == [4, 2, 0, 2]


def test_step_skips_an_update_that_is_not_finite():
    optimizer = optax.sgd(np.inf)
    step = make_train_step(quadratic, optimizer)
    state, metrics = step(start(optimizer), batch())
    assert FAULTS[int(metrics.fault)] == "update"
    np.testing.assert_array_equal(state.params["w"], [1.0, 2.0, 3.0])


def test_step_takes_parameters_whose_squares_overflow():
    optimizer = optax.sgd(0.5)
    params = {"w": jnp.full(3, 3e19, jnp.float32), "v": jnp.ones(2, jnp.float32)}
    state = init_state(params, optimizer, key=KEY)

    def loss_fn(params, carry, batch, key):
        return jnp.sum(params["v"]), (carry, ())

    state, metrics = make_train_step(loss_fn, optimizer)(state, ())
    assert FAULTS[int(metrics.fault)] == "none"
    np.testing.assert_array_equal(state.params["v"], 0.5)


@pytest.mark.parametrize("size", [1, 3])
def test_step_skips_a_gradient_whose_square_overflows(size):
    """The norm of one number is compiled to its absolute value, which is finite."""
    optimizer = optax.adam(0.1)
    state = init_state({"w": jnp.ones(size)}, optimizer, key=KEY)
    before = copied(state)

    def loss_fn(params, carry, batch, key):
        return jnp.sum(params["w"] * batch), (carry, ())

    state, metrics = make_train_step(loss_fn, optimizer)(state, jnp.full(size, 1e200))
    assert FAULTS[int(metrics.fault)] == "gradient" and bool(metrics.skipped)
    chex.assert_trees_all_equal(before.opt_state, copied(state).opt_state)


def test_step_skips_a_state_of_the_optimiser_that_is_not_finite():
    optimizer = optax.adam(0.1)
    state = start(optimizer)
    adam, *rest = state.opt_state
    nu = {"w": adam.nu["w"].at[1].set(jnp.inf)}  # its update is 0
    state = state._replace(opt_state=(adam._replace(nu=nu), *rest))
    state, metrics = make_train_step(quadratic, optimizer)(state, batch())
    assert FAULTS[int(metrics.fault)] == "optimizer state" and bool(metrics.skipped)
    np.testing.assert_array_equal(state.params["w"], [1.0, 2.0, 3.0])


def test_step_skips_what_overflows_in_the_type_of_the_state():
    optimizer = optax.sgd(0.1)
    state = start(optimizer)._replace(carry=jnp.zeros(2, jnp.float16))

    def loss_fn(params, carry, batch, key):
        return jnp.sum(params["w"]), (carry.astype(jnp.float32) + 1e5, ())

    state, metrics = make_train_step(loss_fn, optimizer)(state, ())
    assert FAULTS[int(metrics.fault)] == "forward"
    np.testing.assert_array_equal(state.carry, 0.0)


def test_step_lets_an_optimiser_start_with_infinity():
    """Optimisers that wait for a plateau start with infinity as the best value."""
    best = optax.GradientTransformation(
        lambda params: jnp.array([jnp.inf, jnp.inf]),
        lambda grads, state, params: (grads, state.at[0].set(1.0)),
    )
    optimizer = optax.chain(best, optax.sgd(0.1))
    state, metrics = make_train_step(quadratic, optimizer)(start(optimizer), batch())
    assert not metrics.skipped
    np.testing.assert_array_equal(state.opt_state[0], [1.0, jnp.inf])


def test_step_reports_the_norm_before_clipping_and_clips_to_it():
    optimizer = optax.sgd(1.0)
    step = make_train_step(quadratic, optimizer, clip=0.5)
    state, metrics = step(start(optimizer), batch())
    moved = np.linalg.norm(np.array([1.0, 2.0, 3.0]) - state.params["w"])
    np.testing.assert_allclose(moved, 0.5, rtol=1e-12)
    np.testing.assert_allclose(metrics.grad_norm, 2 * np.sqrt(14), rtol=1e-12)
    small = batch(x=[1e-3] * 3)
    state, metrics = step(state, small)
    assert float(metrics.clip_fraction) == 0.5


@pytest.mark.parametrize("finite", [[1, 1, 1, 0, 1, 1], [0] * 4, [1] * 7])
def test_loss_scale_moves_as_that_of_flax(finite):
    scales = DynamicScale(
        growth_interval=2, scale=jnp.float32(8), fin_steps=jnp.int32(0)
    ).replace(minimum_scale=2.0)
    ours = theirs = scales
    for ok in finite:
        slope = jnp.float32(1.0 if ok else np.inf)
        grad_fn = theirs.value_and_grad(lambda x, slope=slope: x * slope)
        theirs = grad_fn(jnp.float32(1.0))[0]
        ours = rescale(ours, jnp.bool_(ok))
        assert float(ours.scale) == float(theirs.scale)
        assert int(ours.fin_steps) == int(theirs.fin_steps)


def half_loss(params, carry, batch, key):
    """Without scaling, its gradient is 2**-25, which is zero in float16."""
    weights = params["w"].astype(jnp.float16)
    outputs = weights * batch["x"].astype(jnp.float16)
    return jnp.sum(outputs.astype(jnp.float32)) * 2.0**-25, (carry, outputs)


@pytest.mark.parametrize("scale, moves", [(None, False), (2.0**12, True)])
def test_loss_scaling_keeps_gradients_that_float16_would_lose(scale, moves):
    optimizer = optax.sgd(2.0**25)
    loss_scale = None if scale is None else DynamicScale(scale=scale)
    state = start(optimizer, loss_scale=loss_scale)
    state, metrics = make_train_step(half_loss, optimizer)(state, batch())
    want = [0.0, 1.0, 2.0] if moves else [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(state.params["w"], want)
    assert float(metrics.loss_scale) == (scale or 1.0)


def test_loss_scale_falls_until_the_gradient_fits_into_float16():
    optimizer = optax.sgd(1e-3)
    state = start(optimizer, loss_scale=DynamicScale(scale=2.0**40))
    step = make_train_step(half_loss, optimizer)
    scales = []
    for _ in range(6):
        state, metrics = step(state, batch(x=[2.0**9] * 3))
        scales.append((float(metrics.loss_scale), bool(metrics.skipped)))
    assert scales[:4] == [(2.0**e, e > 31) for e in (40, 39, 38, 37)]


def test_step_refuses_a_loss_of_a_half_type():
    optimizer = optax.sgd(1.0)

    def loss_fn(params, carry, batch, key):
        return jnp.float16(1) * params["w"].sum().astype(jnp.float16), (carry, ())

    with pytest.raises(TypeError, match="loss_fn: got a loss of float16, want float32"):
        make_train_step(loss_fn, optimizer)(start(optimizer), batch())


def test_state_refuses_master_weights_of_a_half_type():
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    with pytest.raises(TypeError, match=r"params\['w'\]: got bfloat16, want float32"):
        init_state(params, optax.sgd(1.0), key=KEY)


@pytest.mark.parametrize(
    "make, match",
    [
        (
            lambda: make_train_step(None, optax.sgd(1.0)),
            "loss_fn: got None, want a fun",
        ),  # pyright: ignore
        (
            lambda: make_train_step(quadratic, "adam"),
            "optimizer: got 'adam', .*optax.ad",
        ),  # pyright: ignore
        (lambda: init_state({}, "adam", key=KEY), "optimizer: got 'adam', want one of"),  # pyright: ignore
        (
            lambda: start(optax.sgd(1.0), loss_scale=128.0),
            "loss_scale: got 128.0, want DynamicScale",
        ),
        (
            lambda: make_train_step(quadratic, optax.sgd(1.0))({"w": 1}, batch()),  # pyright: ignore
            "state: got a dict, want what init_state",
        ),
        (
            lambda: make_train_step(quadratic, optax.sgd(1.0))(
                start(optax.sgd(1.0)), batch(loss=[0.0] * 3)
            ),
            r"loss_fn: returned a loss of shape \(3,\), want one number",
        ),
    ],
)
def test_step_and_state_refuse_what_has_another_type(make, match):
    with pytest.raises(TypeError, match=f"^{match}"):
        make()


@pytest.mark.parametrize("options", [{"clip": 0.0}, {"clip": -1.0}, {"accumulate": 0}])
def test_step_refuses_options_that_cannot_work(options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name}: got {value}, want"):
        make_train_step(quadratic, optax.sgd(1.0), **options)


def test_accumulated_parts_give_the_step_of_the_whole_batch():
    def mean_loss(params, carry, batch, key):
        outputs = jnp.tanh(batch @ params["w"])
        return jnp.mean(outputs**2), (carry + jnp.sum(batch, axis=1), outputs)

    optimizer = optax.adam(0.1)
    xs = jax.random.normal(KEY, [12, 3])
    options = {"key": KEY, "carry": jnp.zeros(12)}
    whole = init_state({"w": jnp.ones([3, 2])}, optimizer, **options)
    whole, want = make_train_step(mean_loss, optimizer, clip=0.1)(whole, xs)
    options["carry"] = jnp.zeros([4, 3])
    parts = init_state({"w": jnp.ones([3, 2])}, optimizer, **options)
    step = make_train_step(mean_loss, optimizer, clip=0.1, accumulate=4)
    parts, got = step(parts, xs.reshape(4, 3, 3))
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-12)
    np.testing.assert_allclose(got.grad_norm, want.grad_norm, rtol=1e-12)
    np.testing.assert_allclose(parts.params["w"], whole.params["w"], rtol=1e-12)
    np.testing.assert_allclose(parts.carry.reshape(12), whole.carry, rtol=1e-12)


def test_accumulation_skips_all_parts_if_one_is_not_finite():
    optimizer = optax.sgd(1.0)
    step = make_train_step(quadratic, optimizer, accumulate=2)
    state = start(optimizer)._replace(carry=jnp.zeros([2, 2]))
    parts = jax.tree.map(lambda *a: jnp.stack(a), batch(), batch(output=[np.nan] * 3))
    state, metrics = step(state, parts)
    assert FAULTS[int(metrics.fault)] == "forward"
    np.testing.assert_array_equal(state.params["w"], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(state.carry, 0.0)
    with pytest.raises(
        ValueError, match=r"got a leaf of shape \(.*\), want \[2, ...\]"
    ):
        step(state, batch())


def test_step_is_traced_once_and_gives_its_state_away():
    optimizer = optax.adam(0.1)
    loss_fn = chex.assert_max_traces(quadratic, n=1)
    step = make_train_step(loss_fn, optimizer, clip=1.0)
    state = start(optimizer, loss_scale=DynamicScale())
    state, _ = step(state, batch())
    device = batch()
    with jax.transfer_guard("disallow"):  # no transfer to or from the host
        for _ in range(3):
            given, (state, _) = state, step(state, device)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def seed_loss(model, precision):
    graphdef, params = nnx.split(model)

    def loss_fn(params, carry, batch, key):
        xs, targets = batch
        ys = precision.to_output(nnx.merge(graphdef, params)(xs))
        return jnp.mean((ys - targets) ** 2), (carry, ys)

    return loss_fn, params


@pytest.mark.usefixtures("in_32_bit")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "D, H, B, T",
    [(5, 7, 3, 6), pytest.param(256, 512, 32, 100, marks=pytest.mark.slow)],
)
def test_two_layer_lstm_trains_in_half_precision(dtype, D, H, B, T):
    precision = Precision.parse(dtype)
    options = precision.layer_options()
    model = scanrnn.nnx.LSTM(D, H, num_layers=2, **options, rngs=nnx.Rngs(0))
    loss_fn, params = seed_loss(model, precision)
    optimizer = optax.adam(1e-3)
    loss_scale = DynamicScale() if precision.needs_scaling else None
    state = init_state(params, optimizer, key=KEY, loss_scale=loss_scale)
    step = make_train_step(loss_fn, optimizer, clip=1.0)
    xs = jax.random.normal(KEY, [B, T, D])
    targets = jax.random.normal(jax.random.key(1), [B, T, H])
    assert model(xs).dtype == dtype
    losses = []
    for _ in range(4):
        state, metrics = step(state, (xs, targets))
        losses.append(float(metrics.loss))
        assert not metrics.skipped
    assert losses[-1] < losses[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == FLOAT32
    floats = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert {leaf.dtype for leaf in floats} == FLOAT32


@pytest.mark.usefixtures("in_32_bit")
def test_step_trains_a_linen_module():
    model = nn.RNN(nn.OptimizedLSTMCell(4))
    xs = jax.random.normal(KEY, [3, 5, 2])
    params = model.init(KEY, xs)["params"]

    def loss_fn(params, carry, batch, key):
        ys = scanrnn.accelerate(model.apply)({"params": params}, batch)
        return jnp.mean((ys - 0.3) ** 2), (carry, ys)

    optimizer = optax.adam(1e-2)
    step = make_train_step(loss_fn, optimizer)
    state = init_state(params, optimizer, key=KEY)
    losses = []
    for _ in range(8):
        state, metrics = step(state, xs)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0]


def test_every_step_has_a_key_of_its_own():
    def loss_fn(params, carry, batch, key):
        draw = jax.random.uniform(key)
        return params["w"].sum() * 0 + draw, (carry, ())

    optimizer = optax.sgd(1.0)
    step = make_train_step(loss_fn, optimizer)
    state, draws = start(optimizer), []
    for _ in range(3):
        state, metrics = step(state, batch())
        draws.append(float(metrics.loss))
    assert len(set(draws)) == 3


@pytest.mark.parametrize(
    "key", [0, None, "a", jax.random.split(jax.random.key(0), 2), jnp.ones(2)]
)
def test_start_without_one_key_is_refused(key):
    with pytest.raises(TypeError, match="key: got a .*, want one PRNG key such as"):
        init_state({"w": jnp.zeros(3)}, optax.adam(1e-3), key=key)


def test_state_of_another_optimizer_is_refused():
    def loss_fn(params, carry, batch, key):
        return jnp.sum(params["w"] * batch), ((), ())

    state = init_state({"w": jnp.zeros(3)}, optax.adam(1e-3), key=KEY)
    step = make_train_step(loss_fn, optax.sgd(1e-3, momentum=0.9))
    with pytest.raises(ValueError, match="opt_state is that of another optimizer"):
        step(state, jnp.ones(3))
