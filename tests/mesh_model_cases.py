"""Weights on a mesh with data and model axes. `test_layers_mesh` runs this file.

The messages of a step are counted in the compiled text of its loops.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from scanrnn import linen
from scanrnn.nnx import GRU, LSTM

T, B, D, H = 5, 4, 4, 8
COLUMNS, ROWS = (None, "model"), ("model", None)
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)
MESSAGES = r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)"


def mesh_of(kind, data, model):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(kind,) * 2)


def metadata(kernel, recurrent_kernel, bias=None):
    named = {"kernel": kernel, "recurrent_kernel": recurrent_kernel, "bias": bias}
    return {
        f"{name}_metadata": {"out_sharding": spec}
        for name, spec in named.items()
        if spec
    }


LAYOUTS = {
    "columns": metadata(COLUMNS, COLUMNS, ("model",)),
    "rows": metadata(ROWS, ROWS),
    "both": metadata(COLUMNS, ROWS),
}
LAYERS = {
    "lstm": functools.partial(LSTM, num_layers=2, norm="ba2016"),
    "gru": functools.partial(GRU, integration="multiplicative"),
    "both-ways": functools.partial(GRU, bidirectional=True),
}


def make(name="lstm", **options):
    options = {"param_dtype": jnp.float64, **options}
    return LAYERS[name](D, H, return_carry=True, rngs=nnx.Rngs(0), **options)


def batch():
    return jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)))


def loss(rnn, xs):
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(rnn(xs)))


@functools.cache
def on_one_device(name):
    return jax.jit(jax.value_and_grad(loss))(make(name), batch())


@pytest.mark.parametrize(
    "name, layout, kind",
    [
        ("lstm", "columns", AxisType.Explicit),
        ("lstm", "columns", AxisType.Auto),
        ("lstm", "rows", AxisType.Explicit),
        ("gru", "both", AxisType.Explicit),
        ("both-ways", "rows", AxisType.Auto),
    ],
)
def test_sharded_weights_give_the_same_loss_and_gradient(name, layout, kind):
    want = on_one_device(name)
    with jax.set_mesh(mesh_of(kind, 2, 2)):
        rnn = make(name, **LAYOUTS[layout])
        xs = jax.device_put(batch(), P("data"))
        got = jax.jit(jax.value_and_grad(loss))(rnn, xs)
    kernel = rnn.layers[0]["kernel"][...]
    names = LAYOUTS[layout]["kernel_metadata"]["out_sharding"]
    assert kernel.sharding.spec == P(*names)
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


def messages_in_loops(text):
    """The messages between devices in the loops of a compiled program, by kind."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    name, found = None, collections.Counter()
    for line in text.splitlines():
        if opened := re.match(r"%?([\w.\-]+) .*\{$", line):
            name = opened[1]
        sent = re.search(rf" = .*? {MESSAGES}(-start)?\(", line)
        if name in bodies and sent:
            found[sent[1]] += 1
    return dict(found)


def lowered(f, layout, shape, **options):
    with jax.set_mesh(mesh_of(AxisType.Explicit, *shape)):
        rnn = LSTM(D, H, **LAYOUTS.get(layout, {}), **options, rngs=nnx.Rngs(0))
        xs = jax.device_put(batch().astype(jnp.float32), P("data"))
        return jax.jit(f).lower(rnn, xs).compile().as_text()


def outputs(rnn, xs):
    return rnn(xs)


@pytest.mark.parametrize(
    "layout, forward, both",
    [
        ("none", {}, {}),
        ("columns", {"all-gather": 1}, {"all-gather": 1, "all-reduce": 1}),
        ("rows", {"all-reduce": 1}, {"all-reduce": 1}),
    ],
)
def test_a_step_sends_no_more_than_it_must(layout, forward, both):
    """No message if the batch is split; one in each direction if the weights are.

    If the columns of the matrices are split, the forward step keeps what it gathers, so
    that the reverse step does not gather it again.
    """
    shape = (4, 1) if layout == "none" else (1, 4)
    assert messages_in_loops(lowered(outputs, layout, shape)) == forward
    assert messages_in_loops(lowered(jax.grad(loss), layout, shape)) == both


@pytest.mark.parametrize("spec", [COLUMNS, ROWS], ids=["columns", "rows"])
def test_linen_initializers_shard_the_weights(spec):
    xs = batch()
    init = nn.with_partitioning(nn.initializers.lecun_normal(), spec)
    make = functools.partial(linen.GRU, H, num_layers=2, param_dtype=jnp.float64)
    plain = make(kernel_init=nn.initializers.lecun_normal())
    variables = plain.init(jax.random.key(0), xs)
    want = jax.value_and_grad(lambda v: plain.apply(v, xs).sum())(variables)
    boxed = make(kernel_init=init)
    variables = boxed.init(jax.random.key(0), xs)
    specs = nn.get_partition_spec(variables)
    assert specs["params"]["layers_1"]["kernel"] == P(*spec)
    variables = nn.unbox(variables)
    with jax.set_mesh(mesh_of(AxisType.Explicit, 2, 2)):
        variables = jax.device_put(variables, specs)
        run = jax.jit(jax.value_and_grad(lambda v, xs: boxed.apply(v, xs).sum()))
        got = run(variables, jax.device_put(xs, P("data")))
    jax.tree.map(close, got, want)


def test_metadata_and_initializers_both_say_it():
    init = nnx.with_partitioning(nnx.initializers.ones, ("model",))
    with jax.set_mesh(mesh_of(AxisType.Explicit, 1, 4)):
        rnn = make(kernel_metadata={"out_sharding": COLUMNS}, bias_init=init)
        for params in rnn.layers:
            assert params["kernel"].out_sharding == COLUMNS
            assert params["bias"].out_sharding == ("model",)
            assert "out_sharding" not in params["recurrent_kernel"].get_metadata()
