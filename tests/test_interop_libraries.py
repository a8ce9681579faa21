"""Layers that other libraries make, and our layers with their weights.

`test_cells_libraries`, `test_cells_torch` and `test_cells_conv_libraries` test our
weights in cells of other libraries. Here are whole layers.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import rnn as jax_rnn

import scanrnn
from scanrnn import cells, interop
from scanrnn.interop import Weights

D, H, T, B = 3, 5, 7, 2
XS = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
TORCH = {
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {}),
    "elman": ("RNN", {}),
    "elman-relu": ("RNN", {"nonlinearity": "relu"}),
    "lstm-p": ("LSTM", {"proj_size": 2}),
    "lstm-no-bias": ("LSTM", {"bias": False}),
    "gru-bfloat16": ("GRU", {}),
}


def drawn(cell, num_layers=2, bidirectional=True, dtype=jnp.float32, key=0):
    """Random weights, none of them zero."""
    layers = []
    for index in range(num_layers):
        out = cell.out_features(H) * (2 if bidirectional else 1)
        sizes = (out if index else D), H
        shapes = cell.init(jax.random.key(0), *sizes)
        layers.append([])
        for direction in range(2 if bidirectional else 1):
            own = jax.random.key(100 * key + 10 * index + direction)
            keys = jax.random.split(own, len(shapes))
            params = {
                name: np.array(0.5 * jax.random.normal(k, a.shape, dtype))
                for k, (name, a) in zip(keys, shapes.items(), strict=True)
            }
            layers[-1].append(params)
    return Weights(cell, layers)


def assert_equal(got, wanted):
    assert got.cell == wanted.cell
    jax.tree.map(
        np.testing.assert_array_equal,
        list(got.layers),
        [list(d) for d in wanted.layers],
    )


@pytest.mark.parametrize("name", TORCH)
def test_torch_layers_and_ours_with_their_weights_are_equal(name):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    kind, options = TORCH[name]
    layer = getattr(torch.nn, kind)(
        D, H, num_layers=2, bidirectional=True, batch_first=True, **options
    )
    if name.endswith("bfloat16"):
        layer = layer.to(torch.bfloat16)
    weights = interop.from_torch(layer)
    layer_dtype = layer.weight_ih_l0.dtype
    assert str(layer_dtype) == f"torch.{weights.layers[1][1]['kernel'].dtype}"
    with torch.no_grad():
        # In double, because oneDNN has no projections, and torch warns of that.
        wanted, last = layer.double()(torch.tensor(XS, dtype=torch.float64))
    ours = weights.layer(param_dtype=jnp.float64, return_carry=True)
    carry, ys = ours(np.float64(XS))
    # The sum of two biases is rounded to their dtype.
    least = {"bfloat16": 1e-2, "float32": 1e-6}[str(layer_dtype).split(".")[1]]
    close = functools.partial(np.testing.assert_allclose, rtol=least, atol=least)
    close(ys, wanted)
    h = last[0] if isinstance(last, tuple) else last
    for index, pair in enumerate(carry):
        for direction, one in enumerate(pair):
            close(one.h, h[2 * index + direction])


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_layer_is_called_as_the_module_of_torch(batch_first):
    torch = pytest.importorskip("torch")
    sizes = {"num_layers": 2, "dropout": 0.5, "batch_first": batch_first}
    module = torch.nn.LSTM(D, H, **sizes).eval()
    layer = interop.from_torch(module).layer()
    assert (layer.time_major, layer.dropout) == (not batch_first, 0.5)
    close(layer(XS), module(torch.tensor(XS))[0].detach())
    assert interop.from_torch(module).layer(time_major=True, dropout=0.0).time_major
    noisy = interop.from_torch(module.train()).layer()
    with pytest.raises(ValueError, match="rngs"):
        noisy(XS)
    assert interop.from_torch(module.state_dict()).layer().dropout == 0.0


def test_a_layer_of_ours_is_no_source_of_weights_of_flax():
    rngs = nnx.Rngs(0)
    one = scanrnn.nnx.GRU(D, H, rngs=rngs)
    both = scanrnn.nnx.Bidirectional(one, scanrnn.nnx.GRU(D, H, rngs=rngs))
    steps = scanrnn.nnx.RNNCell(cells.gru(), D, H, rngs=rngs)
    for layer in (one, both, steps, scanrnn.nnx.GRUCell(D, H, rngs=rngs)):
        with pytest.raises(ValueError, match=r"a layer of scanrnn.nnx already: use it"):
            interop.from_nnx(layer)
    twin = scanrnn.linen.GRU(H, num_layers=2)
    variables = twin.init(jax.random.key(0), jnp.ones([2, 3, D]))
    single = scanrnn.linen.GRU(H).init(jax.random.key(0), jnp.ones([2, 3, D]))
    for params in (variables, variables["params"], single["params"]):
        with pytest.raises(ValueError, match=r"a layer of scanrnn.linen, which needs"):
            interop.from_linen(params)


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "MGUCell"])
def test_a_cell_for_one_step_of_ours_has_the_weights_of_a_layer(name):
    cell = getattr(scanrnn.nnx, name)(D, H, rngs=nnx.Rngs(0))
    layer = interop.Weights.of(cell).layer()
    close(layer(XS), scanrnn.nnx.RNN(cell)(XS))
    foreign = getattr(nnx, name.replace("MGU", "Simple"))(D, H, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=rf"^Weights.of: got {type(foreign).__name__},"):
        interop.Weights.of(foreign)


@pytest.mark.parametrize("name", [n for n in TORCH if n != "gru-bfloat16"])
def test_torch_layers_take_our_weights_and_give_them_back(name):
    torch = pytest.importorskip("torch")
    kind, options = TORCH[name]
    cell = cells.lstm(projection=2) if name == "lstm-p" else None
    cell = cell or {"GRU": cells.gru(), "LSTM": cells.lstm()}.get(kind)
    cell = cell or cells.elman(options.get("nonlinearity", "tanh"))
    weights = drawn(cell)
    layer = getattr(torch.nn, kind)(
        D, H, num_layers=2, bidirectional=True, **options | {"bias": True}
    )
    state_dict = interop.to_torch(weights, prefix="encoder.rnn.")
    holder = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"rnn": layer})})
    holder.load_state_dict({k: torch.tensor(v) for k, v in state_dict.items()})
    assert_equal(interop.from_torch(layer), weights)
    back = interop.from_torch(
        state_dict,
        prefix="encoder.rnn.",
        nonlinearity=layer.__dict__.get("nonlinearity"),
    )
    assert_equal(back, weights)


def test_biases_of_a_torch_gru_are_merged_but_for_the_candidates():
    torch = pytest.importorskip("torch")
    layer = torch.nn.GRU(D, H)
    params = interop.from_torch(layer).layers[0][0]
    first, second = (b.detach().numpy() for b in (layer.bias_ih_l0, layer.bias_hh_l0))
    np.testing.assert_array_equal(params["bias"][: 2 * H], (first + second)[: 2 * H])
    np.testing.assert_array_equal(params["bias"][2 * H :], first[2 * H :])
    np.testing.assert_array_equal(params["recurrent_bias"], second[2 * H :])


def both_ways(names):
    """An LSTM in one direction and in two; the other layers in one or two, in turn."""
    names = list(names)
    turns = [(name, bool(i % 2)) for i, name in enumerate(names)]
    return list(dict.fromkeys([*turns, ("lstm", False), ("lstm", True)]))


KERAS = {
    "lstm": ("LSTM", {}, cells.lstm()),
    "gru": ("GRU", {}, cells.gru()),
    "gru-cho2014": ("GRU", {"reset_after": False}, cells.gru(dialect="cho2014")),
    "elman": ("SimpleRNN", {}, cells.elman()),
    "elman-relu": ("SimpleRNN", {"activation": "relu"}, cells.elman("relu")),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Keras may warn on import
@pytest.mark.parametrize(("name", "bidirectional"), both_ways(KERAS))
def test_keras_layers_and_ours_are_equal_and_weights_come_back(name, bidirectional):
    keras = pytest.importorskip("keras")
    kind, options, cell = KERAS[name]
    layer = getattr(keras.layers, kind)(H, return_sequences=True, **options)
    layer = keras.layers.Bidirectional(layer) if bidirectional else layer
    layer.build((B, T, D))
    weights = drawn(cell, 1, bidirectional)
    (arrays,) = interop.to_keras(weights)
    layer.set_weights(arrays)
    close(layer(XS), weights.layer()(XS))
    assert_equal(interop.from_keras(layer), weights)
    activation = options.get("activation", "tanh")
    assert_equal(interop.from_keras([arrays], activation=activation), weights)


@pytest.mark.filterwarnings("default")
def test_keras_conv_lstm_comes_over_and_back():
    pytest.importorskip("keras")
    cell = cells.conv_lstm(kernel_size=(3, 2))
    weights = drawn(cell, 1, False)
    assert_equal(interop.from_keras(interop.to_keras(weights)), weights)


@pytest.mark.filterwarnings("default")
def test_keras_layer_with_other_activations_is_refused():
    keras = pytest.importorskip("keras")
    layer = keras.layers.LSTM(H, recurrent_activation="hard_sigmoid")
    layer.build((B, T, D))
    with pytest.raises(ValueError, match="recurrent_activation='hard_sigmoid'"):
        interop.from_keras(layer)


LINEN = {
    "lstm": (nn.LSTMCell, cells.lstm()),
    "optimized": (nn.OptimizedLSTMCell, cells.lstm()),
    "gru": (nn.GRUCell, cells.gru()),
    "mgu": (nn.MGUCell, cells.mgu()),
    "elman": (nn.SimpleCell, cells.elman()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bidirectional"), both_ways(LINEN))
def test_linen_layers_and_ours_are_equal_and_weights_come_back(name, bidirectional):
    make, cell = LINEN[name]
    layer = nn.RNN(make(H))
    layer = nn.Bidirectional(layer, nn.RNN(make(H))) if bidirectional else layer
    variables = layer.init(jax.random.key(0), XS)
    weights = drawn(cell, 1, bidirectional)
    (tree,) = interop.to_linen(weights)
    assert jax.tree.structure(tree) == jax.tree.structure(variables["params"])
    close(layer.apply({"params": tree}, XS), weights.layer()(XS))
    assert_equal(interop.from_linen(tree), weights)
    theirs = interop.from_linen(variables["params"])
    close(layer.apply(variables, XS), theirs.layer()(XS))


def test_linen_layers_above_each_other_come_as_a_list():
    weights = drawn(cells.gru(), 3, True)
    assert_equal(interop.from_linen(interop.to_linen(weights)), weights)


def test_linen_conv_lstm_comes_back_to_the_rounding_of_its_bias():
    weights = drawn(cells.conv_lstm(kernel_size=3), 1, False)
    got = interop.from_linen(interop.to_linen(weights))
    jax.tree.map(close, list(got.layers), list(weights.layers))


NNX = {
    "lstm": (nnx.LSTMCell, cells.lstm()),
    "optimized": (nnx.OptimizedLSTMCell, cells.lstm()),
    "gru": (nnx.GRUCell, cells.gru()),
    "elman": (nnx.SimpleCell, cells.elman()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bidirectional"), both_ways(NNX))
def test_nnx_layers_and_ours_are_equal_and_weights_come_back(name, bidirectional):
    make, cell = NNX[name]
    rngs = nnx.Rngs(0)
    layers = [nnx.RNN(make(D, H, rngs=rngs)) for _ in range(2 if bidirectional else 1)]
    layer = nnx.Bidirectional(*layers, rngs=rngs) if bidirectional else layers[0]
    close(layer(XS), interop.from_nnx(layer).layer()(XS))
    weights = drawn(cell, 1, bidirectional)
    if name == "gru":
        for params in weights.layers[0]:
            params["recurrent_bias"][:] = 0
    (tree,) = interop.to_nnx(weights, optimized=name == "optimized")
    nnx.update(layer, tree)
    close(layer(XS), weights.layer()(XS))
    assert_equal(interop.from_nnx(layer), weights)
    assert_equal(interop.from_nnx(nnx.state(layer, nnx.Param)), weights)


def test_nnx_gru_has_no_place_for_our_recurrent_bias():
    with pytest.raises(ValueError, match="recurrent_bias"):
        interop.to_nnx(drawn(cells.gru(), 1, False))


@pytest.mark.parametrize(
    "cell", [cells.lstm(), cells.gru(dialect="haiku"), cells.elman("relu")]
)
def test_haiku_weights_come_back(cell):
    weights = drawn(cell, 2, False)
    params = interop.to_haiku(weights, ["lm/lstm_a", "lm/lstm_b"])
    got = interop.from_haiku(params, ["lm/lstm_a", "lm/lstm_b"])
    assert got.cell == cell
    jax.tree.map(close, list(got.layers), list(weights.layers))


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_equinox_cells_come_over_and_back(kind):
    eqx = pytest.importorskip("equinox")
    cell = getattr(eqx.nn, kind)(D, H, key=jax.random.key(0))
    weights = interop.from_equinox(cell)
    carry = jnp.zeros(H)
    carry, ys = (carry, carry) if kind == "LSTMCell" else carry, []
    for x in XS[0]:
        carry = cell(jnp.asarray(x), carry)
        ys.append(carry[0] if kind == "LSTMCell" else carry)
    close(weights.layer()(XS[:1])[0], ys)
    assert_equal(interop.from_equinox(interop.to_equinox(weights)), weights)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_flat_vector_of_jax_comes_over_and_back(bidirectional):
    sizes = D, H, 2, bidirectional
    flat = jax_rnn.init_lstm_weight(jax.random.key(0), *sizes)
    weights = interop.from_cudnn(flat, *sizes)
    assert_equal(interop.from_cudnn(interop.to_cudnn(weights), *sizes), weights)
    directions = 2 if bidirectional else 1
    zeros = jnp.zeros([2 * directions, B, H])
    lengths = jnp.full(B, T, jnp.int32)
    parts = jax_rnn.unpack_lstm_weights(flat, *sizes)
    ys, h, c = jax_rnn.lstm_ref(
        XS, zeros, zeros, *parts, lengths, *sizes[:3], 0.0, bidirectional
    )
    carry, got = weights.layer(return_carry=True)(XS)
    close(got, ys)
    carries = jax.tree.leaves(carry, is_leaf=lambda c: isinstance(c, cells.LSTMCarry))
    close([one.h for one in carries], h)
    close([one.c for one in carries], c)


@pytest.mark.parametrize(
    "convert", [interop.to_torch, interop.to_keras, interop.to_linen, interop.to_nnx]
)
@pytest.mark.parametrize(
    "cell", [cells.lstm(norm="ba2016"), cells.lstm(peephole=True), cells.ugrnn()]
)
def test_a_cell_that_a_library_has_not_is_refused(convert, cell):
    with pytest.raises(
        ValueError, match=r"no cell with the equations of \w+\((\w+=\S+)?\); it"
    ) as caught:
        convert(drawn(cell, 1, False))
    assert 'elman(), elman("relu"), lstm(), ' in str(caught.value)


@pytest.mark.parametrize(
    "name", sorted(name for name in vars(interop) if name.startswith("to_"))
)
@pytest.mark.parametrize("given", [scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0)), {}])
def test_a_layer_in_place_of_its_weights_is_refused(name, given):
    with pytest.raises(TypeError, match=rf"^{name}: weights.*Weights.of\(layer\)"):
        getattr(interop, name)(given)


def test_options_of_training_do_not_matter():
    cell = cells.lstm(recurrent_dropout=0.5, dtype=jnp.bfloat16, forget_bias=2.0)
    assert "weight_ih_l1_reverse" in interop.to_torch(drawn(cell))


def test_layers_with_connections_of_their_own_are_refused():
    layer = scanrnn.nnx.LSTM(5, 5, residual=True, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="residual=True"):
        Weights.of(layer)
    layer = scanrnn.nnx.LSTM(5, 5, reverse=True, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"reverse=True.*Weights.layer\(reverse=True"):
        Weights.of(layer)
    with pytest.raises(TypeError, match="from_nnx"):
        Weights.of(nnx.RNN(nnx.GRUCell(3, 5, rngs=nnx.Rngs(0))))


@pytest.mark.parametrize(
    "change, match",
    [
        (lambda d: d.pop("weight_hh_l1"), "there is no weight_hh_l1"),
        (lambda d: d.pop("bias_hh_l0"), "there is no bias_hh_l0"),
        (
            lambda d: d.update(weight_ih_l1=np.ones([20, 9])),
            r"weight_ih_l1 .*\[4H, E\] with .*E=5",
        ),
        (
            lambda d: d.update(weight_ih_l0=np.ones([21, 3])),
            r"weight_ih_l0 .*\[4H, D\] with H=5",
        ),
        (lambda d: d.update(weight_ih_l0=np.ones(20)), "has shape"),
        (lambda d: d.clear(), "weight_ih_l0 and so on"),
        (lambda d: d.update(weight_ih_l7=np.ones([20, 5])), "_l7"),
    ],
)
def test_a_state_dict_that_is_none_is_refused(change, match):
    state_dict = interop.to_torch(drawn(cells.lstm(), 2, False))
    change(state_dict)
    with pytest.raises(ValueError, match=match):
        interop.from_torch(state_dict)


def test_a_projection_as_wide_as_h_is_refused_as_torch_refuses_it():
    weights = drawn(cells.lstm(projection=H))
    with pytest.raises(ValueError, match="to_torch: .* projection=5 .* proj_size"):
        interop.to_torch(weights)


def test_an_argument_too_many_is_not_taken_for_wrong_weights():
    with pytest.raises(TypeError, match="too many positional arguments"):
        interop.from_torch({}, "lstm")  # pyright: ignore


def test_a_wrong_prefix_is_answered_with_those_there_are():
    state_dict = interop.to_torch(drawn(cells.gru(), 1, False), prefix="encoder.")
    with pytest.raises(ValueError, match=r"give prefix='encoder\.'"):
        interop.from_torch(state_dict)


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_of_both_kinds_of_flax_take_the_same_weights(bidirectional):
    weights = drawn(cells.lstm(norm="ba2016"), 2, bidirectional)
    options = {"num_layers": 2, "bidirectional": bidirectional, "norm": "ba2016"}
    layer = scanrnn.linen.LSTM(H, **options)
    params = layer.init(jax.random.key(0), XS)["params"]
    assert jax.tree.structure(weights.tree()) == jax.tree.structure(params)
    close(layer.apply({"params": weights.tree()}, XS), weights.layer()(XS), atol=2e-5)
    assert_equal(Weights.from_tree(weights.cell, weights.tree()), weights)
    with pytest.raises(ValueError, match="want layers_0 and so on"):
        Weights.from_tree(weights.cell, {"layers_1": params["layers_0"]})


WRITERS = [f for name, f in vars(interop).items() if name.startswith("to_")]
# JAX has its flat vector only for an LSTM.
BARE = [
    pytest.param(kind, write, id=f"{kind}-{write.__name__}")
    for kind in ("lstm", "gru")
    for write in WRITERS
    if (kind, write) != ("gru", interop.to_cudnn)
]


@pytest.mark.parametrize(("kind", "write"), BARE)
def test_weights_without_biases_go_out_with_zeros(kind, write):
    make = getattr(cells, kind)
    options = {"dialect": "haiku"} if (kind, write) == ("gru", interop.to_haiku) else {}
    bare = drawn(make(**options, use_bias=False), 1, False)
    (params,) = bare.layers[0]
    shapes = make(**options).init(jax.random.key(0), D, H)
    biases = {n: np.zeros(a.shape, a.dtype) for n, a in shapes.items() if "bias" in n}
    full = Weights(make(**options), [[biases | params]])
    assert biases and not set(biases) & set(params)
    jax.tree.map(np.testing.assert_array_equal, write(bare), write(full))
    close(bare.layer()(XS), full.layer()(XS))
