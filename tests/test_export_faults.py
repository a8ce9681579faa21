"""Exports and weights of others that once failed, or were silently wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax

import scanrnn
from scanrnn import cells
from scanrnn.interop import Weights, load_safetensors, save_safetensors, to_torch
from scanrnn.serving import Input, to_onnx
from tests.onnx_run import operators, session, xs
from tests.test_serving_state import Stateful


def test_loop_with_a_scalar_carry_is_written():
    def total(xs):
        return lax.scan(lambda c, x: (c + x.sum(), c), jnp.float32(0), xs)

    given = xs(5, 2, 3)
    got = session(to_onnx(total, inputs={"xs": given.shape}))(xs=given)
    for a, b in zip(got, total(given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("index", [-5, -1, 0, 3, 9])
def test_index_outside_gives_what_jax_gives(index):
    def picked(x, i):
        return jnp.take(x, i, axis=0), x.at[i].get(mode="fill", fill_value=7)

    given, i = jnp.asarray(xs(4, 3)), np.array(index, np.int32)
    proto = to_onnx(picked, inputs={"x": (4, 3), "i": Input((), jnp.int32)})
    for a, b in zip(
        session(proto)(x=np.asarray(given), i=i), picked(given, i), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("T", ["sequence", 5])
def test_layers_side_by_side_are_written_one_by_one(T):
    rnn = scanrnn.nnx.LSTM(4, 4, num_layers=2, wavefront=True, rngs=nnx.Rngs(0))
    proto = to_onnx(rnn, inputs={"input": ("batch", T, 4)})
    assert operators(proto)["LSTM"] == 2 and not operators(proto)["Scan"]
    given = xs(3, 5, 4)
    (got,) = session(proto)(input=given)
    np.testing.assert_allclose(got, rnn(given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (cells.gru(dialect="haiku"), cells.gru(dialect="cho2014")),
        (cells.elman("relu"), cells.elman("tanh")),
    ],
)
def test_weights_of_other_equations_are_not_put_into_a_layer(ours, theirs):
    weights = Weights(ours, [[ours.init(jax.random.key(0), 3, 4)]])
    layer = scanrnn.nnx.RNN(theirs, 3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="put_into: .*with other equations"):
        weights.put_into(layer)
    dropped = cells.dropout(cells.weight_drop(ours, 0.5), input=0.5)
    layer = scanrnn.nnx.RNN(dropped, 3, 4, rngs=nnx.Rngs(0))
    weights.put_into(layer)
    kernel = weights.layers[0][0]["kernel"]
    np.testing.assert_array_equal(layer.layers[0]["kernel"][...], kernel)


class Boxed(nn.Module):
    """A module whose parameter has sharding metadata."""

    @nn.compact
    def __call__(self):
        init = nn.with_partitioning(nn.initializers.ones, ("rows",))
        return self.param("w", init, (3,))


TREES = {
    "carry": (
        lambda: {"carry": cells.LSTMCarry(jnp.ones(5), jnp.zeros(5))},
        {"carry.c", "carry.h"},
    ),
    "optimizer": (
        lambda: optax.adam(1.0).init({"w": jnp.ones(2)}),
        {"0.count", "0.mu.w", "0.nu.w"},
    ),
    "module": (
        lambda: nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))),
        {"bias", "kernel"},
    ),
    "boxes": (lambda: Boxed().init(jax.random.key(0)), {"params.w"}),
}


@pytest.mark.parametrize("name", TREES)
def test_names_of_arrays_in_a_file_are_their_places(tmp_path, name):
    make, wanted = TREES[name]
    tree = make()
    save_safetensors(tmp_path / "a", tree)
    assert set(load_safetensors(tmp_path / "a")) == wanted
    again = load_safetensors(tmp_path / "a", like=tree)
    jax.tree.map(np.testing.assert_array_equal, again, tree)


def decay(x):
    return lax.scan(lambda h, x: (0.9 * h + x, None), jnp.zeros(3), x)[0]


def powers(x):
    return lax.scan(lambda h, _: (h @ x.T @ x / 9, h), x, None, 3)


def repeated(x):
    return lax.fori_loop(0, 4, lambda i, h: jnp.sin(h + i), x)


def counted(x):
    def step(carry, x):
        h, n = carry
        return (jnp.tanh(x + h), n + 1), (h, n)

    return scanrnn.scan(step, (jnp.zeros(3), 0), x, implementation="planned")


def planned(x):
    def step(h, x):
        h = jnp.tanh(x @ kernel + h @ kernel)
        return h, h

    kernel = jnp.eye(3, dtype=x.dtype)
    xs = jnp.stack([x, 2 * x])
    return scanrnn.scan(step, jnp.zeros_like(x), xs, implementation="planned")[1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("program", [decay, powers, repeated, counted, planned])
def test_loops_without_inputs_or_outputs_are_written(program, reverse):
    def run(x):
        return jax.tree.leaves(program(jnp.flip(x) if reverse else x))

    given = xs(4, 3)
    got = session(to_onnx(run, inputs={"x": given.shape}))(x=given)
    for a, b in zip(got, run(given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_layer_of_flax_that_counts_its_streams_is_written():
    cell = nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0))
    model = nnx.RNN(cell, rngs=nnx.Rngs(0))
    given = xs(2, 5, 3)
    proto = to_onnx(model, inputs={"xs": ("batch", "steps", 3)})
    (got,) = session(proto)(xs=given)
    np.testing.assert_allclose(got, model(given), rtol=1e-5, atol=1e-6)


def doubled(x, n):
    def goes(state):
        count, value = state
        return (count < n) & (jnp.abs(value).max() < 50)

    def step(state):
        count, value = state
        return count + 1, 2 * value + x

    return lax.while_loop(goes, step, (jnp.int32(0), x))


def repeated(x, n):
    return lax.fori_loop(0, n, lambda i, a: jnp.tanh(a @ x.T @ x) + i, x)


@pytest.mark.parametrize("function", [doubled, repeated])
def test_a_loop_runs_in_onnxruntime_as_long_as_its_condition_holds(function):
    inputs = {"x": (3, 4), "n": Input((), "int32")}
    loaded = session(to_onnx(function, inputs=inputs))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    for n in (0, 1, 4, 40):
        wanted = jax.tree.leaves(function(jnp.asarray(x), n))
        for got, leaf in zip(loaded(x=x, n=np.array(n, "int32")), wanted, strict=True):
            np.testing.assert_allclose(got, leaf, rtol=1e-4)


def test_sum_over_no_axes_is_the_array():
    def summed(x):
        return jnp.sum(x, axis=()) + lax.reduce(x > 0, False, lax.bitwise_or, ())

    given = xs(2, 3)
    (got,) = session(to_onnx(summed, inputs={"x": given.shape}))(x=given)
    np.testing.assert_allclose(got, summed(given), rtol=1e-6)


SIZES = {
    "a power": (lambda x: (x[:, None] * x[None]).reshape(-1), (3, 3)),
    "a sum with a power": (
        lambda x: jnp.concatenate([(x[:, None, 0] * x[None, :, 0]).ravel(), x[:, 0]]),
        (3, 3),
    ),
    "half, rounded up": (lambda x: jnp.zeros(-(-x.shape[0] // 2)) + x.sum(), (5, 3)),
    "a remainder": (lambda x: jnp.zeros((-x.shape[0]) % 3 + 1) + x.sum(), (4, 3)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_computed_from_sizes_are_those_of_jax(name):
    function, shape = SIZES[name]
    given = xs(*shape)
    (got,) = session(to_onnx(function, inputs={"x": ("b", 3)}))(x=given)
    np.testing.assert_allclose(got, function(jnp.asarray(given)), rtol=1e-5)


def test_counted_numbers_in_half_precision_are_rounded():
    def counted(x):
        return (lax.iota(jnp.bfloat16, 300) + x).astype(jnp.float32)

    proto = to_onnx(counted, inputs={"x": Input((), jnp.bfloat16)})
    (got,) = session(proto)(x=np.array(1, np.float32))
    np.testing.assert_array_equal(got, counted(jnp.bfloat16(1)))


def test_layer_around_a_cell_with_state_is_written():
    rnn = scanrnn.nnx.RNN(Stateful())
    rnn.cell.counts = False
    with pytest.raises(ValueError, match="the model holds a random key"):
        to_onnx(rnn, inputs={"input": ("batch", "sequence", 3)})
    rnn.cell.dropout.rngs = None
    given = xs(2, 5, 3)
    proto = to_onnx(rnn, inputs={"input": ("batch", "sequence", 3)})
    np.testing.assert_allclose(session(proto)(input=given)[0], rnn(given), rtol=1e-5)


WRAPPED = {
    "dropout": cells.dropout(cells.lstm(), input=0.1),
    "zoneout": cells.zoneout(cells.gru(), h=0.1),
    "learned carry": cells.learned_carry(cells.elman()),
    "residual": cells.residual(cells.lstm()),
    "highway": cells.highway(cells.gru()),
    "weight drop": cells.weight_drop(cells.lstm(), 0.5),
    "two": cells.residual(cells.dropout(cells.lstm(), input=0.1)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_weights_of_a_wrapped_cell_make_a_layer(name):
    rnn = scanrnn.nnx.RNN(WRAPPED[name], 4, 4, num_layers=2, rngs=nnx.Rngs(0))
    weights = Weights.of(rnn)
    assert (weights.in_features, weights.hidden_features) == (4, 4)
    given = jnp.asarray(xs(2, 5, 4))
    layers = [weights.layer(), rnn]
    one, other = (layer(given, deterministic=True) for layer in layers)
    np.testing.assert_array_equal(one, other)


class Own(cells.Cell):
    """A user's cell, with no more than the contract asks for."""

    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        return {"kernel": jax.random.normal(key, (in_features, hidden_features), dtype)}

    def initial_carry(self, params, x, dtype=None):
        return jnp.zeros_like(x @ params["kernel"], dtype=dtype)

    def step(self, params, carry, x):
        h = jnp.tanh(carry + x @ params["kernel"])
        return h, h


def test_weights_of_a_users_cell_are_refused_in_words():
    rnn = scanrnn.nnx.RNN(Own(), 3, 5, rngs=nnx.Rngs(0))
    weights = Weights.of(rnn)
    with pytest.raises(ValueError, match="torch has no cell .* the cell Own"):
        to_torch(weights)
    with pytest.raises(ValueError, match="the cell Own does not tell its sizes"):
        weights.layer()
    with pytest.raises(ValueError, match="weights are those of the cell Own"):
        weights.put_into(scanrnn.nnx.LSTM(3, 5, rngs=nnx.Rngs(0)))


def test_a_cell_without_biases_is_refused_as_it_is():
    rnn = scanrnn.nnx.RHN(3, 5, use_bias=False, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="torch has no cell .* rhn.*use_bias=False"):
        to_torch(Weights.of(rnn))


STARTS = {
    "indrnn": (cells.indrnn(longest=100), cells.indrnn()),
    "rhn": (cells.rhn(2, transfer_bias=-1.0), cells.rhn(2)),
    "lru": (cells.lru(r_min=0.5), cells.lru()),
    "highway": (
        cells.highway(cells.lstm(), carry_bias=-2.0),
        cells.highway(cells.lstm()),
    ),
    "integration": (
        cells.lstm(integration=cells.Multiplicative(alpha=2.0)),
        cells.lstm(integration="multiplicative"),
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_weights_fit_a_cell_with_other_starting_values(name):
    one, other = STARTS[name]
    weights = Weights.of(scanrnn.nnx.RNN(one, 4, 4, rngs=nnx.Rngs(0)))
    rnn = scanrnn.nnx.RNN(other, 4, 4, rngs=nnx.Rngs(1))
    weights.put_into(rnn)
    given = jnp.asarray(xs(2, 5, 4))
    np.testing.assert_array_equal(rnn(given), weights.layer()(given))


def assert_exported(function, *arrays, rtol=0.0):
    """Onnxruntime gives the values, shapes and dtypes of JAX."""
    inputs = {f"x{k}": Input(a.shape, a.dtype) for k, a in enumerate(arrays)}
    got = session(to_onnx(function, inputs=inputs))(
        **dict(zip(inputs, arrays, strict=True))
    )
    wanted = jax.tree.leaves(function(*map(jnp.asarray, arrays)))
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=rtol)


@pytest.mark.parametrize("dtype, most", [("float32", 88.7), ("float64", 709.7)])
def test_results_near_the_largest_number_and_near_zero_are_exact(dtype, most):
    ends = np.array([0, -0.0, 1e-30, -1e-9, 1e-4, np.inf, -np.inf, np.nan], dtype)
    powers = np.concatenate([ends, np.linspace(-1.2 * most, most, 999, dtype=dtype)])
    sizes = np.geomspace(1e-9, 0.99 * np.finfo(dtype).max, 999, dtype=dtype)
    rtol = 30 * np.finfo(dtype).eps
    assert_exported(jnp.expm1, powers, rtol=rtol)
    assert_exported(jnp.log1p, np.concatenate([ends, sizes, -ends]), rtol=rtol)


def either(which, x):
    return lax.cond(which, jnp.sin, jnp.cos, x)


def switched(which, x):
    return lax.switch(which, [jnp.cos, jnp.sin], x)


@pytest.mark.parametrize(
    "function, which",
    [
        (either, np.array([True, False])),
        (switched, np.array([-1, 0, 1, 7], np.int32)),
    ],
)
def test_mapped_choice_between_two_branches_is_written(function, which):
    given = xs(len(which))
    assert_exported(jax.vmap(function), which, given, rtol=1e-6)


INTEGERS = {
    "sum": lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (1,)),
    "product": lambda x: lax.reduce(x, x.dtype.type(1), lax.mul, (1,)),
    "running": lambda x: (lax.cumsum(x), lax.cumprod(x)),
    "power": lambda x: lax.integer_pow(x, 3),
    "matrix product": lambda x: jnp.dot(x, x.T),
    "products of rows": lambda x: jnp.einsum("bi,bi->b", x, x),
}
ORDERED = {
    "largest": lambda x: (lax.reduce_max(x, (1,)), lax.reduce_min(x, (0, 1))),
    "place": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)),
    "top k": lambda x: lax.top_k(x, 2),
}
COMPARED = {
    "larger": lambda x: (lax.max(x, x[::-1]), lax.min(x, x[::-1])),
    "orders": lambda x: (x < x[::-1], x <= x[::-1], x > x[::-1], x >= x[::-1]),
    "running largest": lambda x: (lax.cummax(x), lax.cummin(x)),
    "clamp": lambda x: lax.clamp(x[0, 1], x, x[0, 0]),
    "pad": lambda x: jnp.pad(x, 1),
}
SHORT = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32)]


@pytest.mark.parametrize("dtype", [*SHORT, "int64", "uint64"])
@pytest.mark.parametrize("name", [*INTEGERS, *ORDERED, *COMPARED])
def test_integers_of_every_size_are_computed_as_in_jax(name, dtype):
    function = (INTEGERS | ORDERED | COMPARED)[name]
    most = np.iinfo(dtype).max  # sums and products of these wrap around
    if name in ("sum", "product") and dtype == "int64":
        most = 2**50  # but not in onnxruntime
    given = np.array([[most, 1, 2], [7, most - 1, 4]], dtype)
    if name in ORDERED and dtype == "uint64":
        with pytest.raises(ValueError, match="of uint64; cast it to int64"):
            assert_exported(function, given)
    else:
        assert_exported(function, given)


BOOLS = {
    **{name: COMPARED[name] for name in ("larger", "orders", "pad")},
    **{name: ORDERED[name] for name in ("largest", "place")},
    "all": lambda x: (jnp.all(x, 1), jnp.any(x, 0), jnp.max(x), jnp.min(x)),
}


@pytest.mark.parametrize("name", BOOLS)
def test_booleans_are_ordered_as_in_jax(name):
    assert_exported(BOOLS[name], np.array([[True, False], [True, True]]))


@pytest.mark.parametrize(
    "function, match",
    [
        (lambda x: lax.conv(x, x, (1, 1), "SAME"), "operator .* does not take .*Conv"),
        (lambda x: lax.reduce(x, np.int32(-1), lax.bitwise_and, (0,)), "of bits"),
    ],
)
def test_integers_that_an_operator_does_not_take_are_refused(function, match):
    inputs = {"x": Input((2, 2, 3, 3), "int32")}
    with pytest.raises(ValueError, match=f"^to_onnx: .*{match}.*; compute it outside"):
        to_onnx(function, inputs=inputs)


EMPTY = {
    "scan": lambda x: lax.scan(lambda h, x: (h + x, (h, 2 * x)), x.sum(0), x),
    "fori": lambda x: lax.fori_loop(0, len(x), lambda i, h: h + i, x),
    "running": lambda x: (lax.cummax(x), lax.cumprod(x), lax.cumsum(x)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_loop_of_no_steps_keeps_its_carry(name):
    assert_exported(EMPTY[name], np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "Elman"])
def test_layer_over_no_steps_keeps_its_carry(kind):
    rnn = getattr(scanrnn.nnx, kind)(3, 4, rngs=nnx.Rngs(0))
    proto = to_onnx(rnn, inputs={"input": (2, 0, 3)}, carry=True)
    first = {i.name: np.ones((2, 4), np.float32) for i in proto.graph.input[1:]}
    ys, *last = session(proto)(input=np.zeros((2, 0, 3), np.float32), **first)
    assert ys.shape == (2, 0, 4) and all((h == 1).all() for h in last)
