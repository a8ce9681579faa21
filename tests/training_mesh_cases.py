"""Training on four devices. `test_training_scale` runs this file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from scanrnn.nnx import LSTM
from scanrnn.training import (
    Checkpoints,
    Config,
    Streams,
    init_state,
    make_mesh,
    make_model,
    make_train_step,
    make_training,
    rows_of_process,
    shard_batch,
)

IDS = np.random.default_rng(0).integers(0, 11, 400).astype(np.int32)
COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: (
        COMPILED.append(event) if "backend_compile" in event else None
    )
)
CONFIG = Config(
    features=8,
    layers=2,
    batch=8,
    window=5,
    precision="params=float64,compute=float64,carry=float64,output=float64",
)


def changed(**values):
    return Config.from_mapping({**vars(CONFIG), **values})


def trained(config, mesh=None, steps=4):
    """Losses of some steps, the last state, and the programs the last step compiled."""
    model = make_model(config, symbols=11)
    state, train_step = make_training(config, model, mesh=mesh)
    streams = Streams(IDS, config.batch, config.window, parts=config.accumulate)
    losses = []
    for number in range(steps):
        before = len(COMPILED)
        batch = next(streams)
        batch = batch if mesh is None else shard_batch(batch, mesh)
        state, metrics = train_step(state, batch)
        losses.append((float(metrics.loss), float(metrics.grad_norm)))
        compiled = len(COMPILED) - before if number else 0
    return losses, state, compiled


@functools.cache
def on_one_device(**values):
    losses, state, _ = trained(changed(**values))
    return losses, [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def test_there_are_four_devices():
    assert jax.device_count() == 4


@pytest.mark.parametrize(
    "tensor, values",
    [
        (1, {}),
        (2, {}),
        (4, {"cell": "gru"}),
        (1, {"accumulate": 2}),
        (2, {"optimizer": "sgd", "learning_rate": 1.0, "loss": "sum"}),
    ],
    ids=["data", "data and gates", "gates", "accumulated", "sgd"],
)
def test_run_on_four_devices_is_that_on_one(tensor, values):
    want, params = on_one_device(**values)
    mesh = make_mesh(4, tensor)
    losses, state, compiled = trained(changed(**values), mesh)
    np.testing.assert_allclose(losses, want, rtol=1e-9)
    for got, wanted in zip(jax.tree.leaves(state.params), params, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)
    assert compiled == 0
    kernel = state.params["rnn"]["layers"][0]["recurrent_kernel"][...]
    assert kernel.addressable_shards[0].data.shape[-1] == kernel.shape[-1] // tensor
    carry = jax.tree.leaves(state.carry)[0]
    axis = 1 if values.get("accumulate") else 0
    examples = carry.addressable_shards[0].data.shape[axis]
    assert examples == carry.shape[axis] * tensor // 4


def test_checkpoint_of_four_devices_is_read_on_one_and_back(tmp_path):
    config, mesh = CONFIG, make_mesh(4, 2)
    losses, state, _ = trained(config, mesh)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(4, state, {})
    like, _ = make_training(config, make_model(config, symbols=11))
    one = checkpoints.state(like=like)
    assert all(leaf.sharding.num_devices == 1 for leaf in jax.tree.leaves(one.params))
    four = checkpoints.state(
        like=make_training(config, make_model(config, symbols=11), mesh=mesh)[0]
    )
    for a, b, c in zip(
        *(jax.tree.leaves(s.params) for s in (state, one, four)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
        assert a.sharding == c.sharding


def test_mesh_says_what_does_not_divide():
    with pytest.raises(
        ValueError, match="devices: got 8, but there are 4; .* as N devices"
    ):
        make_mesh(8)
    with pytest.raises(ValueError, match="tensor: got 3, want a divisor of 4 devices"):
        make_mesh(4, 3)
    with pytest.raises(ValueError, match="batch: got 6, want a multiple of the 4 dev"):
        rows_of_process(make_mesh(4), 6)
    assert rows_of_process(make_mesh(2), 6) == (0, 6)


def test_batches_are_split_over_the_devices():
    batch = shard_batch({"ids": np.arange(12).reshape(3, 4)}, make_mesh(4))
    assert [s.data.shape for s in batch["ids"].addressable_shards] == [(3, 1)] * 4
    np.testing.assert_array_equal(batch["ids"], jnp.arange(12).reshape(3, 4))


def test_step_works_on_a_mesh_of_either_kind():
    rnn = LSTM(3, 5, num_layers=2, norm="ba2016", rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(rnn)

    def loss_fn(params, carry, batch, key):
        ys = nnx.merge(graphdef, params)(batch)
        return jnp.mean(ys**2), (carry, ys)

    optimizer, losses = optax.adam(1e-2), []
    xs = jax.random.normal(jax.random.key(1), [8, 6, 3])
    for kind in (AxisType.Explicit, AxisType.Auto):
        mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
        with jax.set_mesh(mesh):
            state = init_state(params, optimizer, key=jax.random.key(0))
            state = jax.device_put(state, NamedSharding(mesh, P()))
            shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
            step = make_train_step(loss_fn, optimizer, shardings=shardings)
            batch = jax.device_put(xs, NamedSharding(mesh, P("data")))
            for _ in range(2):
                state, metrics = step(state, batch)
            losses.append(float(metrics.loss))
            state, metrics = step(state, batch * jnp.nan)
            assert metrics.skipped and not metrics.loss == losses[-1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
