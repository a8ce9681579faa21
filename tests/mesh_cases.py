"""Cells and layers on a mesh of four devices. `test_layers_mesh` runs this file."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import scanrnn
from scanrnn import cells
from scanrnn._tune import memory
from scanrnn.nnx import (
    GLA,
    GRU,
    LSTM,
    MLSTM,
    RNN,
    ConvGRU,
    ConvLSTM,
    Elman,
    GatedDeltaNet,
)
from tests.cell_table import CELLS, draw

T, D, H = 3, 3, 4


@dataclasses.dataclass(frozen=True)
class Own(cells.Cell):
    """A cell of a user, whose first carry is on no mesh."""

    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        shape = in_features + hidden_features, hidden_features
        return {"kernel": jax.random.normal(key, shape, dtype)}

    def initial_carry(self, params, x, dtype=None):
        return jnp.zeros((*x.shape[:-1], params["kernel"].shape[1]), dtype)

    def step(self, params, carry, x):
        carry = jnp.tanh(jnp.concatenate([x, carry], -1) @ params["kernel"])
        return carry, carry


LAYERS = {
    "elman": functools.partial(Elman, D, H, time_major=True, reverse=True),
    "gru": functools.partial(GRU, D, H, integration="multiplicative", norm="ba2016"),
    "lstm": functools.partial(LSTM, D, H, num_layers=2, residual=True),
    "gated_deltanet": functools.partial(
        GatedDeltaNet, D, H, heads=2, implementation="chunkwise"
    ),
    "gla": functools.partial(GLA, D, H, heads=2, implementation="chunkwise"),
    "mlstm": functools.partial(MLSTM, D, H, heads=2, implementation="chunkwise"),
    "own": functools.partial(RNN, Own(), D, H),
}
every_mesh = pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
# Under Auto axes JAX asks less of a layer: one layer of each kind of loop runs there.
layer_on_mesh = pytest.mark.parametrize(
    ("name", "kind"),
    [(name, AxisType.Explicit) for name in LAYERS]
    + [(name, AxisType.Auto) for name in ("elman", "lstm", "mlstm")],
)
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)


@pytest.fixture
def mesh(kind):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        yield mesh


def make(name):
    return LAYERS[name](param_dtype=jnp.float64, return_carry=True, rngs=nnx.Rngs(0))


def loss(rnn, xs):
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(rnn(xs)))


def batch(time_major=False):
    shape = (T, 4, D) if time_major else (4, T, D)
    return jnp.asarray(np.random.default_rng(0).normal(size=shape))


@functools.cache
def on_one_device(name):
    """The loss of a layer and its gradient, without a mesh."""
    rnn = make(name)
    return jax.jit(jax.value_and_grad(loss))(rnn, batch(rnn.time_major))


def spec(time_major=False):
    return P(None, "data") if time_major else P("data")


def trimmed(spec):
    """A spec without the Nones at its end."""
    axes = list(spec)
    while axes and axes[-1] is None:
        axes.pop()
    return P(*axes)


def test_there_are_four_devices():
    assert jax.device_count() == 4


@pytest.mark.parametrize("kind", [AxisType.Auto])
def test_tuner_asks_how_arrays_are_sharded(kind, mesh):
    xs, numbers = batch(), np.zeros(4)
    whole, shared = (NamedSharding(mesh, spec) for spec in (P(), P("data")))
    places = (whole, shared, jax.devices()[1])
    found = [memory._placed(jax.device_put(xs, place)) for place in places]
    assert found[0] != found[1] and found[1][0] == 4 and found[1][-1] == [1, T, D]
    assert found[2] is None and memory._placed(numbers) is None
    assert jax.jit(lambda x: (memory._placed(x) is None) * x)(xs).any()


@every_mesh
@pytest.mark.parametrize("name", ["elman", "lstm-norm-mi", "gru", "residual-gru"])
def test_initial_carry_is_sharded_as_the_input(name, kind, mesh):
    row = CELLS[name]
    params, xs, _ = draw(row)
    x = jax.device_put(jnp.concatenate([xs[0], xs[0]]), P("data"))
    carry = jax.jit(row.cell.initial_carry)(params, x)
    if kind is AxisType.Explicit:
        assert {trimmed(leaf.sharding.spec) for leaf in carry} == {P("data")}
    assert {leaf.shape for leaf in carry} == {(4, 4)}


@layer_on_mesh
def test_sharded_batch_gives_the_same_loss_and_gradient(name, kind):
    want = on_one_device(name)
    with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(kind,))):
        rnn = make(name)
        xs = jax.device_put(batch(rnn.time_major), spec(rnn.time_major))
        got = jax.jit(jax.value_and_grad(loss))(rnn, xs)
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


@layer_on_mesh
def test_sharded_batch_gives_sharded_outputs_and_carry(name, kind, mesh):
    rnn = make(name)
    xs = jax.device_put(batch(rnn.time_major), spec(rnn.time_major))
    carry, outputs = jax.jit(lambda rnn, xs: rnn(xs))(rnn, xs)
    assert trimmed(outputs.sharding.spec) == spec(rnn.time_major)
    for leaf in jax.tree.leaves(carry):
        assert trimmed(leaf.sharding.spec) == P("data")
    again, _ = jax.jit(lambda rnn, xs, c: rnn(xs, initial_carry=c))(rnn, xs, carry)
    jax.tree.map(lambda a, b: close(a.shape, b.shape), again, carry)


@every_mesh
def test_layer_and_carry_can_be_donated(kind, mesh):
    rnn = make("gru")
    xs = jax.device_put(batch(), P("data"))
    carry, want = rnn(xs)
    run = jax.jit(
        lambda rnn, xs, carry: (rnn, *rnn(xs, initial_carry=carry)),
        donate_argnums=(0, 2),
    )
    zeros = jax.tree.map(jnp.zeros_like, carry)
    kernel = rnn.layers[0]["kernel"][...]
    rnn, again, outputs = run(rnn, xs, zeros)
    assert kernel.is_deleted()
    assert zeros.h.is_deleted()
    close(outputs, want)
    jax.tree.map(close, again, carry)


@every_mesh
def test_shard_map_splits_the_batch(kind):
    want = on_one_device("gru")
    with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(kind,))):

        @functools.partial(jax.shard_map, in_specs=(P(), P("data")), out_specs=P())
        def split_loss(rnn, xs):
            return jax.lax.psum(loss(rnn, xs), "data")

        xs = jax.device_put(batch(), P("data"))
        got = jax.jit(jax.value_and_grad(split_loss))(make("gru"), xs)
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


@pytest.mark.parametrize("name", LAYERS)
def test_shard_map_over_one_axis_leaves_the_other_to_the_compiler(name):
    want = on_one_device(name)
    rnn = make(name)
    specs = P(), spec(rnn.time_major)
    with jax.set_mesh(
        jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    ):

        @functools.partial(
            jax.shard_map, in_specs=specs, out_specs=P(), axis_names={"data"}
        )
        def split_loss(rnn, xs):
            return jax.lax.psum(loss(rnn, xs), "data")

        xs = batch(rnn.time_major)
        got = jax.jit(jax.value_and_grad(split_loss))(rnn, xs)
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


@every_mesh
def test_flax_cell_in_our_layer_takes_a_sharded_batch(kind, mesh):
    cell = nnx.OptimizedLSTMCell(D, H, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    xs = batch()
    want = RNN(cell)(xs)
    got = jax.jit(lambda cell, xs: RNN(cell)(xs))(cell, jax.device_put(xs, P("data")))
    close(got, want)


@every_mesh
def test_replicated_weights_may_live_on_the_mesh(kind, mesh):
    rnn, xs = make("lstm"), batch()
    want = jax.jit(loss)(rnn, xs)
    rnn = jax.device_put(rnn, NamedSharding(mesh, P()))
    close(jax.jit(loss)(rnn, jax.device_put(xs, P("data"))), want)


def noisy(name):
    zoned = cells.zoneout(cells.lstm(), h=0.3, c=0.3)
    options = {"param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}
    if name == "zoneout":
        return RNN(zoned, D, H, **options)
    return LSTM(D, H, num_layers=2, dropout=0.5, **options)


@every_mesh
@pytest.mark.parametrize("name", ["dropout", "zoneout"])
def test_noise_of_a_sharded_batch_is_that_of_one_device(name, kind):
    rnn, xs = noisy(name), batch()

    def run(rnn, xs):
        return rnn(xs, rngs=nnx.Rngs(dropout=1))

    want = run(rnn, xs)
    with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(kind,))):
        xs = jax.device_put(xs, P("data"))
        close(run(rnn, xs), want)
        close(jax.jit(run)(rnn, xs), want)


@every_mesh
@pytest.mark.parametrize("name", ["mask", "resets", "seq_lengths"])
def test_spans_need_not_be_sharded_as_the_batch(name, kind, mesh):
    rnn, xs = make("lstm"), batch()
    marks = np.random.default_rng(1).random([4, T]) < 0.5
    spans = {name: np.arange(4) % T if name == "seq_lengths" else marks}
    want = rnn(xs, **spans)
    got = jax.jit(lambda rnn, xs: rnn(xs, **spans))(rnn, jax.device_put(xs, P("data")))
    jax.tree.map(close, got, want)


@every_mesh
@pytest.mark.parametrize("wavefront", [None, True])
def test_replicated_initial_carry_is_sharded_as_the_batch(wavefront, kind, mesh):
    options = {"return_carry": True, "param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}
    rnn = LSTM(D, D, num_layers=2, wavefront=wavefront, **options)
    carry, _ = rnn(xs := batch())
    want = rnn(xs, initial_carry=carry)
    run = jax.jit(lambda rnn, xs, carry: rnn(xs, initial_carry=carry))
    jax.tree.map(close, run(rnn, jax.device_put(xs, P("data")), carry), want)


@every_mesh
def test_replicated_initial_carry_of_a_flax_cell_is_sharded_too(kind, mesh):
    cell = nnx.GRUCell(D, H, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    xs, carry = batch(), jnp.ones([4, H])
    want = RNN(cell)(xs, initial_carry=carry)
    run = jax.jit(lambda cell, xs, carry: RNN(cell)(xs, initial_carry=carry))
    close(run(cell, jax.device_put(xs, P("data")), carry), want)


def explicit():
    return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))


def test_carry_that_a_step_shards_without_a_mesh_runs_as_lax_scan():
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(D, D)))

    def total(weights, xs, scan=jax.lax.scan):
        def step(h, x):
            return (jnp.tanh(x + h @ weights),) * 2

        return jnp.sum(scan(step, jnp.zeros([4, D]), xs)[1] ** 2)

    xs = batch(time_major=True)
    sharded = jax.device_put(xs, NamedSharding(explicit(), P(None, "data")))
    want = jax.grad(total)(weights, xs)
    for scan in (jax.lax.scan, scanrnn.scan):
        run = functools.partial(total, scan=scan)
        close(jax.jit(jax.grad(run))(weights, sharded), want)
    planned = functools.partial(scanrnn.scan, implementation="planned")
    with pytest.raises(ValueError, match="carry starts on no mesh"):
        total(weights, sharded, planned)


@every_mesh
@pytest.mark.parametrize("layer", [ConvLSTM, ConvGRU])
def test_pictures_of_a_sharded_batch_give_the_gradient_of_one_device(layer, kind):
    rnn = layer(3, 4, kernel_size=(3, 3), param_dtype=float, rngs=nnx.Rngs(0))
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 5, 5, 3)))

    def slopes(xs):
        return nnx.jit(nnx.grad(lambda rnn, xs: jnp.sum(rnn(xs) ** 2)))(rnn, xs)

    wanted = slopes(xs)
    with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(kind,))):
        found = slopes(jax.device_put(xs, P("data")))
    jax.tree.map(close, jax.tree.leaves(found), jax.tree.leaves(wanted))


def test_convolution_of_a_sharded_carry_has_the_gradient_of_lax_scan():
    """`vmap` of its derivative would join the axes of time and of the batch."""
    kernel, W = jnp.array([0.2, 0.5, 0.1]).reshape(3, 1, 1), 0.1 * jnp.eye(64)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4, 64)))

    def slopes(scan, xs):
        def loss(kernel, W):
            def step(h, x):
                dims = ("NWC", "WIO", "NWC")
                mixed = jax.lax.conv_general_dilated(
                    h[..., None], kernel, (1,), "SAME", dimension_numbers=dims
                )
                h = jnp.tanh(mixed[..., 0] + h @ W + x @ W)
                return h, h

            return jnp.sum(scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)

        return jax.jit(jax.grad(loss, (0, 1)))(kernel, W)

    wanted = slopes(jax.lax.scan, xs)
    with jax.set_mesh(explicit()):
        found = slopes(scanrnn.scan, jax.device_put(xs, P(None, "data")))
    jax.tree.map(close, found, wanted)
