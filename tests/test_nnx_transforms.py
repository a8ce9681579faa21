"""The layers under the transforms of JAX and of NNX."""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import export

import scanrnn
from scanrnn.nnx import GRU, LSTM, RNN, Elman

T, D, H = 4, 3, 4
LAYERS = {
    "elman": functools.partial(Elman, D, H, activation="relu"),
    "gru": functools.partial(GRU, D, H, reverse=True),
    "lstm": functools.partial(LSTM, D, H, num_layers=2, norm="ba2016", residual=True),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
graph_mode = pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)


def make(name, seed=0):
    return LAYERS[name](param_dtype=jnp.float64, rngs=nnx.Rngs(seed))


def inputs(*batch, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(*batch, T, D)))


def loss(rnn, xs):
    return jnp.sum(jnp.sin(rnn(xs)))


@every_layer
def test_layer_is_a_pytree_of_its_weights(name):
    rnn = make(name)
    leaves = jax.tree.leaves(rnn)
    assert len(leaves) == len(nnx.to_flat_state(nnx.state(rnn, nnx.Param)))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float64)}
    assert len(nnx.to_flat_state(nnx.state(rnn, nnx.Not(nnx.Param)))) == 0


@every_layer
def test_raw_jax_transforms_take_a_layer(name):
    rnn, xs = make(name), inputs(2)
    want, gradient = jax.jit(jax.value_and_grad(loss))(rnn, xs)
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient))
    close(jax.jit(lambda xs: loss(rnn, xs))(xs), want)
    close(jnp.sum(jnp.sin(jax.jit(jax.vmap(rnn))(xs))), want)
    again = jax.jit(jax.grad(jax.checkpoint(loss)))(rnn, xs)
    assert jax.tree.structure(again) == jax.tree.structure(gradient)
    jax.tree.map(close, again, gradient)


def test_gradient_is_the_slope_of_the_loss():
    rnn, xs = make("lstm"), inputs(2)
    generator = np.random.default_rng(7)
    along = jax.tree.map(lambda a: generator.normal(size=a.shape), (rnn, xs))

    @jax.jit
    def moved(distance):
        return loss(*jax.tree.map(lambda a, d: a + distance * d, (rnn, xs), along))

    step = 1e-5
    slope = (moved(step) - moved(-step)) / (2 * step)
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))(rnn, xs)
    products = jax.tree.map(lambda g, d: jnp.sum(g * d), gradient, along)
    close(sum(jax.tree.leaves(products)), slope, rtol=1e-7)


def test_a_stack_of_layers_is_an_ensemble():
    xs, keys = inputs(2), jax.random.split(jax.random.key(0), 3)
    members = jax.vmap(lambda key: LSTM(D, H, rngs=nnx.Rngs(key)))(keys)
    assert members.layers[0]["kernel"].shape == (3, D, 4 * H)
    got = jax.jit(jax.vmap(lambda rnn: rnn(xs)))(members)
    run = jax.jit(lambda rnn: rnn(xs))
    for index in range(3):
        member = jax.tree.map(lambda leaf, index=index: leaf[index], members)
        close(got[index], run(member), rtol=1e-5)


@graph_mode
def test_nnx_transforms_take_a_layer(graph):
    rnn, xs = make("gru"), inputs(2)
    value, want = jax.jit(jax.value_and_grad(loss))(rnn, xs)
    with nnx.set_graph_mode(graph), nnx.set_graph_updates(graph):
        got_value, got = nnx.jit(nnx.value_and_grad(loss))(rnn, xs)
        each = nnx.jit(nnx.vmap(loss, in_axes=(None, 0)))(rnn, xs)
        close(nnx.jit(nnx.remat(loss))(rnn, xs), value)
    close(got_value, value)
    close(each.sum(), value)
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


def test_a_scan_over_equal_layers_equals_the_stack():
    """The layer is compiled once for any depth."""
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(2, T, D)))

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make_layers(rngs):
        return GRU(D, D, residual=True, param_dtype=jnp.float64, rngs=rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def run(xs, layer):
        return layer(xs)

    layers = make_layers(nnx.Rngs(0))
    deep = GRU(
        D, D, num_layers=3, residual=True, param_dtype=jnp.float64, rngs=nnx.Rngs(1)
    )
    for index, params in enumerate(deep.layers):
        for name, param in params.items():
            param[...] = layers.layers[0][name][index]
    close(run(xs, layers), deep(xs))


@graph_mode
def test_an_optimizer_trains_a_layer(graph):
    with nnx.set_graph_mode(graph), nnx.set_graph_updates(graph):
        rnn, xs = make("elman"), inputs(2)
        optimizer = nnx.Optimizer(rnn, optax.sgd(1e-2), wrt=nnx.Param)
        traces = []

        @jax.jit
        def step(rnn, optimizer, xs):
            traces.append(xs.shape)
            value, gradient = jax.value_and_grad(loss)(rnn, xs)
            optimizer.update(rnn, gradient)
            return rnn, optimizer, value

        losses = []
        for _ in range(3):
            rnn, optimizer, value = step(rnn, optimizer, xs)
            losses.append(float(value))
        assert losses == sorted(losses, reverse=True)
        assert len(traces) == 1


@graph_mode
def test_a_layer_splits_and_merges(graph):
    rnn, xs = make("lstm"), inputs(2)
    graphdef, state = nnx.split(rnn, graph=graph)
    close(nnx.merge(graphdef, state)(xs), rnn(xs))
    assert hash(graphdef) == hash(nnx.split(make("lstm"), graph=graph)[0])
    assert graphdef == nnx.split(make("lstm", 1), graph=graph)[0]


def test_equal_layers_share_a_trace():
    traces = []

    @jax.jit
    def run(rnn, xs):
        traces.append(xs.shape)
        return rnn(xs)

    for seed in range(3):
        run(make("lstm", seed), inputs(2, seed=seed))
    assert len(traces) == 1


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copy_of", [copy.deepcopy, pickled])
def test_a_layer_can_be_copied(copy_of):
    rnn, xs = make("gru"), inputs(2)
    other = copy_of(rnn)
    close(other(xs), rnn(xs))
    other.layers[0]["kernel"][...] *= 2
    assert not jnp.allclose(other(xs), rnn(xs))


@every_layer
def test_export_takes_symbolic_batch_and_time(name):
    rnn = make(name)
    shape = export.symbolic_shape(f"b, t, {D}")
    spec = jax.ShapeDtypeStruct(shape, jnp.float64)
    exported = export.export(jax.jit(lambda xs: rnn(xs)))(spec)
    for batch, time in ((1, 1), (3, 7)):
        xs = jnp.asarray(np.random.default_rng(0).normal(size=(batch, time, D)))
        close(exported.call(xs), rnn(xs))


def test_flax_cell_in_our_layer_works_under_raw_transforms():
    cell = nnx.OptimizedLSTMCell(D, H, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    ours, theirs, xs = RNN(cell), nnx.RNN(cell), inputs(2)
    got = jax.jit(jax.grad(loss))(ours, xs)
    want = nnx.jit(nnx.grad(loss))(theirs, xs)
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(f"b, t, {D}"), jnp.float64)
    close(export.export(jax.jit(lambda xs: ours(xs)))(spec).call(xs), ours(xs))


EVERY = sorted(
    name
    for name, value in vars(scanrnn.nnx).items()
    if isinstance(value, type) and issubclass(value, RNN) and value is not RNN
)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_layer_works_under_every_transform(name):
    """Transforms of JAX and of NNX, both modes, and export; Linen layers too."""
    options = {"kernel_size": 3} if name.startswith("Conv") else {}
    shape = (2, T, *((4,) if options else ()), D)
    options |= {"param_dtype": jnp.float64}
    rnn = getattr(scanrnn.nnx, name)(D, D, **options, rngs=nnx.Rngs(0))
    xs = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    near = functools.partial(close, rtol=1e-9, atol=1e-10)
    value, grads = jax.jit(jax.value_and_grad(loss))(rnn, xs)
    again = jax.jit(jax.grad(jax.checkpoint(loss)))(rnn, xs)
    jax.tree.map(near, again, grads)
    near(jnp.sum(jnp.sin(jax.jit(jax.vmap(rnn))(xs))), value)
    with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
        got, by_nnx = nnx.jit(nnx.value_and_grad(loss))(rnn, xs)
        jax.tree.map(
            near, jax.tree.leaves((got, by_nnx)), jax.tree.leaves((value, grads))
        )
    graphdef, state = nnx.split(rnn)
    near(jax.jit(lambda state: loss(nnx.merge(graphdef, state), xs))(state), value)
    symbols = export.symbolic_shape(f"b, t, {', '.join(map(str, shape[2:]))}")
    exported = export.export(jax.jit(rnn))(jax.ShapeDtypeStruct(symbols, xs.dtype))
    near(exported.call(xs), rnn(xs))
    module = getattr(scanrnn.linen, name)(D, **options)
    weights = (("layers", rnn.layers), ("backward_layers", rnn.backward_layers))
    params = {
        f"{side}_{index}": {name: value[...] for name, value in layer.items()}
        for side, layers in weights
        for index, layer in enumerate(layers)
    }
    twin = jax.jit(jax.value_and_grad(lambda p: loss(with_weights(module, p), xs)))
    got, by_linen = twin(params)
    near(got, value)
    flat = [layer[name] for layer in by_linen.values() for name in sorted(layer)]
    wanted = [layer[name][...] for layer in grads.layers for name in sorted(layer)]
    jax.tree.map(near, flat, wanted)
    near(jax.vmap(with_weights(module, params))(xs), rnn(xs))


def with_weights(module, params):
    """A Linen module with its weights, as a function."""
    return lambda xs: module.apply({"params": params}, xs)
