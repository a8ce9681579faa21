"""Layers and models as ONNX: onnxruntime gives the same results as JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import scanrnn
from scanrnn import cells
from scanrnn.executors.run.pin import pin
from scanrnn.interop import Weights
from scanrnn.serving import Input, to_onnx
from tests.cell_table import CELLS, H, draw
from tests.onnx_run import operators, session, xs

SHAPES = [(1, 1), (3, 7), (2, 4)]
# One row for each kind of carry is quick.
SOME = {"lstm-norm-mi", "gru", "qrnn-2-fo", "conv_gru", "slstm", "lru"}
ROWS = [
    pytest.param(row, id=name, marks=() if name in SOME else pytest.mark.slow)
    for name, row in CELLS.items()
]
close = functools.partial(np.testing.assert_allclose, rtol=3e-5, atol=3e-6)


def make(kind, *sizes, **options):
    return getattr(scanrnn.nnx, kind)(*sizes, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("row", ROWS)
def test_every_cell_is_the_same_in_onnxruntime(row):
    D = row.in_features
    layer = scanrnn.nnx.RNN(row.cell, D, H, rngs=nnx.Rngs(0))
    params, *_ = draw(row)
    # Numbers so large that a GRU's candidate saturates would hide errors.
    Weights(row.cell, [[{k: 0.5 * v for k, v in params.items()}]]).put_into(layer)
    shape = ("batch", "sequence", *row.spatial, D)
    proto = to_onnx(layer, inputs={"input": Input(shape)}, carry=True)
    run = session(proto)
    names = [one.name for one in proto.graph.input]
    for B, T in SHAPES[1:]:
        x = xs(B, T, *row.spatial, D)
        carry, _ = layer(x, return_carry=True, deterministic=True)
        first = jax.tree.map(lambda a: 0.1 + jnp.abs(a), carry)
        last, ys = layer(x, initial_carry=first, return_carry=True, deterministic=True)
        feed = dict(zip(names, map(np.asarray, [x, *first]), strict=True))
        for got, wanted in zip(run(**feed), [ys, *last], strict=True):
            close(got, wanted, rtol=2e-4, atol=2e-5)


LAYERS = {
    "lstm-2-bidirectional": (
        lambda: make("LSTM", 3, 5, num_layers=2, bidirectional=True),
        {"LSTM": 4},
    ),
    "gru-time-major": (lambda: make("GRU", 3, 5, time_major=True), {"GRU": 1}),
    "gru-reverse": (
        lambda: make("GRU", 3, 5, reverse=True, keep_order=True),
        {"GRU": 1},
    ),
    "elman-relu": (lambda: make("Elman", 3, 5, activation="relu"), {"RNN": 1}),
    "lstm-peephole": (lambda: make("LSTM", 3, 5, peephole=True), {"LSTM": 1}),
    "gru-cho2014": (lambda: make("GRU", 3, 5, dialect="cho2014"), {"GRU": 1}),
    "lstm-residual": (
        lambda: make("LSTM", 5, 5, num_layers=3, residual=True),
        {"LSTM": 3},
    ),
    "lstm-everything": (
        lambda: make(
            "LSTM",
            3,
            4,
            num_layers=2,
            bidirectional=True,
            norm="ba2016",
            integration="multiplicative",
            heads=2,
            residual=True,
        ),
        {"Scan": 4},
    ),
    "two-cells": (
        lambda: scanrnn.nnx.RNN(
            [cells.gru(), cells.lstm(norm="ba2016")], 3, [4, 5], rngs=nnx.Rngs(0)
        ),
        {"GRU": 1, "Scan": 1},
    ),
    "flax-cell": (
        lambda: scanrnn.nnx.RNN(nnx.OptimizedLSTMCell(3, 5, rngs=nnx.Rngs(0))),
        {"Scan": 1},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_the_same_by_the_operators_that_are_wanted(name):
    layer, wanted = LAYERS[name][0](), LAYERS[name][1]
    D = layer.in_features or 3
    proto = to_onnx(layer, inputs={"input": ("batch", "sequence", D)})
    if layer.time_major:
        proto = to_onnx(layer)
    found = operators(proto)
    kinds = ("LSTM", "GRU", "RNN", "Scan")
    assert {kind: found[kind] for kind in kinds if found[kind]} == wanted
    run = session(proto)
    for B, T in SHAPES:
        x = xs(*((T, B) if layer.time_major else (B, T)), D)
        close(run(input=x)[0], layer(x))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lengths_and_carries_come_in_and_go_out(bidirectional):
    layer = make("LSTM", 3, 5, num_layers=2, bidirectional=bidirectional)
    proto = to_onnx(layer, carry=True, lengths=True)
    names = [one.name for one in proto.graph.input]
    first = "initial_0_0_h" if bidirectional else "initial_0_h"
    assert names[:3] == ["input", "lengths", first]
    assert [one.name for one in proto.graph.output][0] == "output"
    run = session(proto)
    for B, T in SHAPES:
        x, lengths = xs(B, T, 3), np.arange(B, dtype=np.int32) % (T + 1)
        carry, _ = layer(x, return_carry=True)
        begin = jax.tree.map(lambda a: a + 0.1, carry)
        last, ys = layer(x, seq_lengths=lengths, initial_carry=begin, return_carry=True)
        leaves = [x, lengths, *map(np.asarray, jax.tree.leaves(begin))]
        got = run(**dict(zip(names, leaves, strict=True)))
        for one, wanted in zip(got, [ys, *jax.tree.leaves(last)], strict=True):
            close(one, wanted)


@pytest.mark.parametrize("keep_order", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_a_layer_that_goes_backwards_has_lengths(keep_order, time_major):
    layer = make(
        "GRU", 3, 5, reverse=True, keep_order=keep_order, time_major=time_major
    )
    run = session(to_onnx(layer, lengths=True, carry=True))
    for B, T in SHAPES:
        x, lengths = xs(B, T, 3), np.arange(B, dtype=np.int32) % (T + 1)
        x = np.swapaxes(x, 0, 1) if time_major else x
        carry, wanted = layer(x, seq_lengths=lengths, return_carry=True)
        first = np.zeros([B, 5], np.float32)
        ys, last = run(input=x, lengths=lengths, initial_h=first)
        close(ys, wanted)
        close(last, carry.h)


ANGLES = np.float32([0.0, -0.0, 1, -1, 0.5, 1e-30, 1e30, np.inf, -np.inf, np.nan])


def test_angles_are_those_of_jax_for_zeros_and_infinities():
    y, x = (a.ravel() for a in np.meshgrid(ANGLES, ANGLES))
    proto = to_onnx(jnp.arctan2, inputs={"y": (y.size,), "x": (y.size,)})
    got, wanted = session(proto)(y=y, x=x)[0], np.asarray(jnp.arctan2(y, x))
    close(got, wanted)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


def test_what_has_come_so_far_is_that_of_jax_for_nan_and_infinities():
    x = np.float32([[1, 2, -np.inf, 0], [np.inf, -1, np.nan, 3]])
    for function in (lax.cummax, lax.cummin, lax.cumprod):
        proto = to_onnx(lambda x, f=function: f(x, 1), inputs={"x": (2, 4)})
        close(session(proto)(x=x)[0], function(x, 1))


def test_the_model_is_of_fixed_versions_and_open_axes():
    proto = to_onnx(make("GRU", 3, 5))
    assert (proto.opset_import[0].version, proto.ir_version) == (20, 9)
    for values, last in ((proto.graph.input, 3), (proto.graph.output, 5)):
        dims = values[0].type.tensor_type.shape.dim
        assert [d.dim_param or d.dim_value for d in dims] == ["batch", "sequence", last]


def test_half_precision_rounds_where_jax_rounds():
    layer = make("LSTM", 3, 5, norm="ba2016", dtype=jnp.bfloat16)
    wide = make("LSTM", 3, 5, norm="ba2016")
    x = xs(3, 7, 3)
    got = session(to_onnx(layer))(input=x)[0]
    wanted = layer(x).astype(np.float32)
    close(got, wanted, rtol=8e-3, atol=0)  # one unit in the last place of bfloat16
    assert (got == wanted).mean() > 0.95
    assert abs(got - wanted).mean() < abs(got - wide(x)).mean() / 10


class Classifier(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 4, rngs=rngs)
        self.rnn = scanrnn.nnx.LSTM(4, 6, bidirectional=True, rngs=rngs)
        self.norm = nnx.LayerNorm(12, rngs=rngs)
        self.head = nnx.Linear(12, 3, rngs=rngs)

    def __call__(self, ids):
        h = jnp.max(self.norm(self.rnn(self.embed(ids))), axis=1)
        return jax.nn.log_softmax(self.head(nnx.gelu(h)))


def test_a_whole_model_goes_out_with_its_layers_as_operators():
    model, ids = Classifier(), np.random.default_rng(0).integers(0, 11, (2, 7))
    inputs = {"ids": Input(("batch", "sequence"), "int32")}
    proto = to_onnx(model, inputs=inputs, outputs=["scores"])
    assert operators(proto)["LSTM"] == 2
    close(session(proto)(ids=ids.astype(np.int32))[0], model(ids))
    assert model.rnn.implementation is None  # the copy was changed, not the model


class Tagger(nnx.Module):
    """Ids of tokens through an embedding and a layer."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(10, 4, rngs=rngs)
        self.rnn = scanrnn.nnx.GRU(4, 5, rngs=rngs)

    def __call__(self, ids):
        return self.rnn(self.embed(ids))


def test_ids_of_a_tokenizer_go_in_as_int64_without_x64(in_32_bit):
    model = Tagger(nnx.Rngs(0))
    proto = to_onnx(model, inputs={"ids": Input(("batch", "time"), "int64")})
    ids = np.arange(6).reshape(2, 3)
    (got,) = session(proto)(ids=ids)
    close(got, model(jnp.asarray(ids)))


def test_numbers_of_64_bits_go_into_a_layer_without_x64(in_32_bit):
    layer = make("LSTM", 3, 5)
    shape = ("batch", "time", 3)
    proto = to_onnx(layer, inputs={"input": Input(shape, "float64")}, carry=True)
    x, zeros = xs(2, 4, 3), np.zeros((2, 5), np.float32)
    feed = {"input": x.astype(np.float64), "initial_h": zeros, "initial_c": zeros}
    close(session(proto)(**feed)[0], layer(x))


def test_a_step_of_ones_own_goes_out_as_a_scan():
    weights = jax.random.normal(jax.random.key(0), [3 + 5, 5])

    def step(h, x):
        z = jnp.concatenate([x, h], axis=-1) @ weights
        h = jnp.where(z > 0, z, 0.1 * jnp.expm1(z)) * lax.rsqrt(1 + h**2)
        return h, (h, jnp.argmax(h, axis=-1))

    def model(xs):
        zeros = jnp.zeros([xs.shape[1], 5])
        return scanrnn.scan(step, zeros, xs, reverse=True, implementation="scan")

    x = xs(7, 2, 3)
    proto = to_onnx(model, inputs={"xs": ("time", "batch", 3)})
    got = session(proto)(xs=x)
    assert [one.name for one in proto.graph.output] == [f"output_{k}" for k in range(3)]
    for one, wanted in zip(got, jax.tree.leaves(model(x)), strict=True):
        close(one, wanted)


def test_a_layer_of_linen_goes_out_as_a_function():
    layer, x = scanrnn.linen.LSTM(5, num_layers=2, implementation="scan"), xs(2, 7, 3)
    variables = layer.init(jax.random.key(0), x)
    inputs = {"input": ("batch", "sequence", 3)}
    proto = to_onnx(lambda x: layer.apply(variables, x), inputs=inputs)
    assert operators(proto)["LSTM"] == 2
    close(session(proto)(input=x)[0], layer.apply(variables, x))


def test_a_plain_loop_is_found_by_its_step_whoever_wrote_it():
    cell = cells.gru()
    params = cell.init(jax.random.key(0), 3, 5)

    def model(xs):
        carry = cells.GRUCarry(jnp.zeros([xs.shape[1], 5], jnp.float32))
        return lax.scan(functools.partial(cell.step, params), carry, xs)[1]

    proto = to_onnx(model, inputs={"xs": ("time", "batch", 3)})
    assert operators(proto)["GRU"] == 1
    close(session(proto)(xs=xs(7, 2, 3))[0], model(xs(7, 2, 3)))


@pytest.mark.parametrize("norm", [None, "ba2016"])
def test_a_planned_loop_goes_out_as_it_was_planned(norm):
    layer = make("LSTM", 16, 16, norm=norm)
    proto = to_onnx(lambda x: layer(x), inputs={"x": ("batch", "sequence", 16)})
    found = operators(proto)
    # The product with the input runs before the loop.
    assert found["Scan"] == 1 and found["MatMul"] == 1
    run = session(proto)
    for B, T in SHAPES:
        x = xs(B, T, 16)
        close(run(x=x)[0], layer(x), atol=2e-5)


def test_weights_that_come_in_leave_the_loop_a_scan():
    cell = cells.gru()
    params = {k: v * 1.0 for k, v in cell.init(jax.random.key(0), 3, 5).items()}
    names = sorted(params)

    def model(xs, *weights):
        own = dict(zip(names, weights, strict=True))
        carry = cells.GRUCarry(jnp.zeros([xs.shape[1], 5], jnp.float32))
        return lax.scan(functools.partial(cell.step, own), carry, xs)[1]

    inputs = {"xs": ("time", "batch", 3)} | {k: params[k].shape for k in names}
    proto = to_onnx(model, inputs=inputs)
    assert operators(proto)["Scan"] == 1
    weights = {name: np.asarray(value) for name, value in params.items()}
    got = session(proto)(xs=xs(7, 2, 3), **weights)[0]
    close(got, model(xs(7, 2, 3), *(params[k] for k in names)))


UNARY = {
    **{name: getattr(jnp, name) for name in ("abs", "exp", "tanh", "sin", "cos")},
    **{name: getattr(jnp, name) for name in ("ceil", "floor", "round", "sign")},
    **{name: getattr(jnp, name) for name in ("expm1", "square", "arctan", "sinh")},
    "log": lambda x: jnp.log(jnp.abs(x)),
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "logaddexp": lambda x: jnp.logaddexp(x, 2 * x),
    "softplus": jax.nn.softplus,
    "erf": lax.erf,
    "rsqrt": lambda x: lax.rsqrt(jnp.abs(x)),
    "cube": lambda x: x**3,
    "inverse": lambda x: x**-2,
    "exp2": jnp.exp2,
    "isfinite": lambda x: jnp.isfinite(jnp.log(x - x)),
    "clip": lambda x: jnp.clip(x, -0.5, 0.5),
    "remainder": lambda x: lax.rem(x, jnp.float32(0.3)),
    "bools": lambda x: (x > 0) & ~(x > 1) | (x < -1) ^ (x != 0),
    "any": lambda x: jnp.any(x > 1, axis=-1) & jnp.all(x > -9, axis=-1),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "cumsum": lambda x: jnp.cumsum(x, axis=1),
    "argmin": lambda x: jnp.argmin(x, axis=-1),
    "max-min": lambda x: jnp.max(x, axis=-1) - jnp.min(x, axis=(0, 1, 2)),
    "flip": lambda x: jnp.flip(x, axis=(0, 2)),
    "pad": lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=7),
    "slice": lambda x: lax.slice(x, (0, 1, 0), x.shape, (1, 1, 2)),
    "window": lambda x: x[:, 1:, 1:2] + x[:, -1:, :1],
    "element": lambda x: x[:, -1],
    "along": lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1, keepdims=True), 1),
    "take": lambda x: jnp.take(x, jnp.array([[2, 0], [1, 5]]), axis=2),
    "dynamic": lambda x: lax.dynamic_slice_in_dim(x, 2, 2, axis=2),
    "einsum": lambda x: jnp.einsum("btd,bsd->bts", x, x),
    "turned": lambda x: jnp.einsum("btd,kd->btk", x, jnp.arange(6.0).reshape(2, 3)),
    "flat": lambda x: x.reshape(-1),
    "merged": lambda x: x.reshape(x.shape[0] * x.shape[1], 3),
    "set": lambda x: x.at[:, 1].set(x[:, 0]).at[0, 0, 0].set(7),
    "set-window": lambda x: x.at[:, 1:, 1:2].multiply(3).at[-1].min(0),
    "add-twice": lambda x: x.at[:, jnp.array([1, 0, 1])].add(x[:, :1]),
    "subtract": lambda x: x.at[jnp.array([0, 0]), :, jnp.array([0, 2])].add(
        -x[0].T[:2]
    ),
    "max-of-bools": lambda x: x.at[..., jnp.argmax(x[0, 0])].max(0.5) > 0,
    "set-outside": lambda x: x.at[:, jnp.array([99, 0])].set(5),
    "set-clipped": lambda x: x.at[:, jnp.array([99])].set(5, mode="clip"),
    "set-inside": lambda x: x.at[:, 0].set(5, mode="promise_in_bounds"),
    "set-integers": lambda x: (x > 0).astype(jnp.int32).at[:, :, 1].add(2),
    "set-half": lambda x: x.astype(jnp.float16).at[:, 1].add(0.1).astype(jnp.float32),
    "set-where": lambda x: x[:, jnp.array([1, 0])].at[0].set(x[0, :1]),
    "update": lambda x: lax.dynamic_update_slice(x, 0 * x[:, :1, :2] + 4, (0, 99, 1)),
    "pairs": lambda x: x[:, jnp.array([0, 1, 99]), jnp.array([2, -1, 0])],
    "windows": lambda x: jax.vmap(
        lambda a, k: lax.dynamic_slice_in_dim(a, k, 2, axis=1)
    )(x, jnp.arange(x.shape[0]) - 1),
    "along-broadcast": lambda x: jnp.take_along_axis(
        x, jnp.int32(x[:, :1, :1] > 0) + jnp.array([0, 99])[None, :, None], 1
    ),
    "atan2": lambda x: jnp.arctan2(x, jnp.flip(x, 2)),
    "cummax": lambda x: lax.cummax(x, 1),
    "cummin-reverse": lambda x: lax.cummin(x, 2, reverse=True),
    "cumprod": lambda x: jnp.cumprod(x, axis=1),
    "bools-chosen": lambda x: jnp.where(x > 0, x > 1, x[..., jnp.array([0, 9, 1])] < 0),
    "bools-taken": lambda x: jnp.take(x < 0, jnp.array([0, 9, 1]), axis=2),
    "shorts-chosen": lambda x: jnp.where(x > 0, jnp.int16(3), jnp.int16(-4)),
    "stack": lambda x: jnp.stack([x, -x], axis=2),
    "unstack": lambda x: sum(k * one for k, one in enumerate(jnp.unstack(x, axis=2))),
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "log2": lambda x: jnp.log2(jnp.abs(x)),
    "cbrt": jnp.cbrt,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "placed": lambda x: pin(jax.device_put(x), (8, 128, 16)) * 2,
    "top-k": lambda x: jnp.sum(jnp.stack(lax.top_k(x, 2)), axis=0),
    "size": lambda x: x / x.shape[1],
    "steps": lambda x: jnp.arange(x.shape[1]) + x[..., 0],
    "half": lambda x: (x.astype(jnp.float16) * 3 + 1).astype(jnp.float32),
    "cond": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "checkpoint": jax.checkpoint(jnp.sin),
    "custom_jvp": jax.nn.relu,
    "prod": lambda x: jnp.prod(x, axis=-1),
    "bools-ordered": lambda x: ((x > 0) < (x > 1)) | ((x > 0) >= (x < 1)),
    "unsigned": lambda x: (-(x > 0).astype(jnp.uint8)).astype(jnp.float32),
    "round-away": lambda x: lax.round(jnp.round(4 * x) / 2),
    "floor-divide": lambda x: jnp.floor_divide(x, 0.7),
    "bits": lambda x: (x * 8).astype(jnp.int32) & 3,
    "precision": lambda x: lax.reduce_precision(x, 8, 7),
    "zeros": lambda x: jnp.zeros_like(x) + x.astype(bool),
}


@pytest.mark.parametrize("name", UNARY)
def test_primitive_is_the_same_in_onnxruntime(name):
    function = UNARY[name]
    run = session(to_onnx(function, inputs={"x": ("batch", "sequence", 3)}))
    for x in map(jnp.asarray, (xs(2, 4, 3), 1e-6 * xs(1, 4, 3), 20 * xs(3, 2, 3))):
        got, wanted = run(x=np.asarray(x))[0], np.asarray(function(x))
        assert got.dtype == wanted.dtype
        close(got, wanted)


def test_a_convolution_is_the_same_in_onnxruntime():
    conv = nnx.Conv(3, 4, (3, 2), strides=(1, 2), padding="SAME", rngs=nnx.Rngs(0))
    x = xs(2, 5, 6, 3)
    got = session(to_onnx(conv, inputs={"x": ("batch", 5, 6, 3)}))(x=x)[0]
    close(got, conv(x), rtol=1e-4)


@pytest.mark.parametrize(
    "function, name",
    [
        (lambda x: jnp.sort(x), "sort"),
        (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), "random"),
        (lambda x: lax.complex(x, x).real, "complex"),
        (lax.lgamma, "'lgamma'.*to_stablehlo"),
        (lambda x: x.at[0].apply(jnp.sin), r"x\.at\[...\]\.apply"),
        (lambda x: lax.cumlogsumexp(x, 1), "'cumlogsumexp'"),
    ],
)
def test_what_onnx_has_no_word_for_is_named(function, name):
    with pytest.raises(ValueError, match=f"to_onnx: .*{name}"):
        to_onnx(function, inputs={"x": (2, 4, 3)})


@pytest.mark.parametrize(
    "model, options, match",
    [
        (jnp.sin, {}, "inputs={name: Input"),
        (jnp.sin, {"carry": True, "inputs": {"x": (2,)}}, "are for an RNN"),
        (jnp.sin, {"inputs": {"x": ("a b",)}}, "names such as"),
        (jnp.sin, {"inputs": {"/sin_1": (2,)}}, "'/sin_1' is not a valid name"),
        (jnp.sin, {"inputs": {"x": (2,)}, "outputs": ["a", "b"]}, "returns 1 arrays"),
        (make("ConvGRU", 3, 5, kernel_size=3), {}, "not known"),
    ],
)
def test_arguments_that_say_too_little_are_refused(model, options, match):
    with pytest.raises(ValueError, match=match):
        to_onnx(model, **options)


def test_the_file_is_whole_or_not_there(tmp_path, monkeypatch):
    proto = to_onnx(make("GRU", 3, 5), tmp_path / "gru.onnx")
    assert (tmp_path / "gru.onnx").read_bytes() == proto.SerializeToString()
    monkeypatch.setattr("os.replace", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        to_onnx(make("GRU", 3, 5), tmp_path / "other.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["gru.onnx"]
