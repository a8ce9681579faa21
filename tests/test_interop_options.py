"""Options of other libraries' objects: they fit our cells, or the error names them.

Each option of a library must be neutral, or be in `OTHERS` here with a value that must
be an error. A test fails for an option that is in neither.
"""

import functools
import inspect

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import interop
from scanrnn.interop import _options

D, H, T, B = 3, 5, 4, 2
XS = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
# Flax warns that `carry_init` is deprecated, and Keras may warn on import.
pytestmark = pytest.mark.filterwarnings("default", "ignore:carry_init is")


def summed(a, b):
    return a + b


def of_nnx(name, **options):
    rngs = nnx.Rngs(0)
    if name == "Bidirectional":
        return nnx.Bidirectional(*2 * [of_nnx("RNN")], **options, rngs=rngs)
    if name == "RNN":
        return nnx.RNN(of_nnx("GRUCell"), **options)
    return getattr(nnx, name)(D, H, **options, rngs=rngs)


def of_linen(name, **options):
    if name == "Bidirectional":
        return nn.Bidirectional(*2 * [of_linen("RNN")], **options)
    if name == "RNN":
        return nn.RNN(nn.GRUCell(H), **options)
    size = {"kernel_size": (3,)} if name == "ConvLSTMCell" else {}
    return getattr(nn, name)(H, **size, **options)


def of_keras(name, **options):
    layers = pytest.importorskip("keras").layers
    if name == "Bidirectional":
        return layers.Bidirectional(layers.GRU(H), **options)
    if name.startswith("Conv"):
        options = {"kernel_size": 3, "padding": "same"} | options
    return getattr(layers, name)(H, **options)


def of_equinox(name):
    eqx = pytest.importorskip("equinox")
    return getattr(eqx.nn, name)(D, H, key=jax.random.key(0))


def of_torch(name):
    return getattr(pytest.importorskip("torch").nn, name)(D, H)


MAKE = {
    "NNX": of_nnx,
    "LINEN": of_linen,
    "KERAS": of_keras,
    "EQUINOX": of_equinox,
    "TORCH": of_torch,
}
CLASSES = [
    (library, name) for library in MAKE for name in getattr(_options, library).classes
]
OTHERS = {
    "gate_fn": nnx.relu,
    "activation_fn": jnp.sin,
    "carry_init": nnx.initializers.ones_init(),
    "residual": True,
    "reset_gate": False,
    "reverse": True,
    "keep_order": True,
    "merge_fn": summed,
    "promote_dtype": summed,
    "dot_general": summed,
    "strides": 2,
    "padding": "valid",
    "activation": "gelu",
    "recurrent_activation": "hard_sigmoid",
    "go_backwards": True,
    "stateful": True,
    "merge_mode": "sum",
    "data_format": "channels_first",
    "dilation_rate": 2,
}


@pytest.mark.parametrize("library, name", CLASSES)
def test_options_that_change_equations_are_refused_by_name(library, name):
    known, make = getattr(_options, library), MAKE[library]
    default = make(name)
    known.read("here", default)
    parameters = inspect.signature(type(default).__init__).parameters.values()
    asked = {
        one.name
        for one in parameters
        if one.name != "self" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    } - known.neutral
    assert asked <= set(OTHERS), "an option that nobody thought of"
    for option in asked:
        assert hasattr(default, option), "nobody can ask for it"
        with pytest.raises(ValueError, match=f"here: {name} has {option}="):
            known.read("here", make(name, **{option: OTHERS[option]}))


def test_a_class_of_ones_own_is_refused():
    class Cell(nnx.GRUCell):
        def __call__(self, carry, inputs):
            return -carry, inputs

    with pytest.raises(ValueError, match=r"Cell, want one of flax's RNN.*nnx\.state"):
        interop.from_nnx(nnx.RNN(Cell(D, H, rngs=nnx.Rngs(0))))


def test_a_function_is_known_by_its_values():
    assert _options.plain(lambda x: x * (x > 0)) == "relu"
    assert _options.plain(jax.jit(jnp.tanh)) == "tanh"
    for other in (jax.nn.relu6, jax.nn.hard_tanh, jax.nn.hard_sigmoid, summed):
        assert _options.plain(other) is other


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_activation_of_a_flax_cell_is_read(activation):
    function = getattr(nnx, activation)
    rnn = nnx.RNN(nnx.SimpleCell(D, H, activation_fn=function, rngs=nnx.Rngs(0)))
    close(interop.from_nnx(rnn).layer()(XS), rnn(XS))
    module = nn.RNN(nn.SimpleCell(H, activation_fn=function))
    variables = module.init(jax.random.key(0), XS)
    weights = interop.from_linen(variables["params"], module=module)
    close(weights.layer()(XS), module.apply(variables, XS))
    other = {"tanh": "relu", "relu": "tanh"}[activation]
    for read in (
        lambda: interop.from_nnx(rnn, activation=other),
        lambda: interop.from_linen(
            variables["params"], module=[module], activation=other
        ),
    ):
        with pytest.raises(ValueError, match="'relu' and 'tanh', want one for all"):
            read()


def test_an_object_is_read_while_it_is_traced():
    cell = nnx.SimpleCell(D, H, activation_fn=jnp.tanh, rngs=nnx.Rngs(0))
    graph, state = nnx.split(cell)

    @jax.jit
    def run(state, x):
        return interop.from_nnx(nnx.merge(graph, state)).layer()(x)

    close(run(state, XS), nnx.RNN(cell)(XS))


def test_an_activation_that_the_cell_has_not_is_refused():
    tree = nnx.state(nnx.GRUCell(D, H, rngs=nnx.Rngs(0)), nnx.Param)
    for activation in ("relu", "gelu"):
        with pytest.raises(ValueError, match=f"'gru' .* '{activation}', want"):
            interop.from_nnx(tree, activation=activation)


def test_both_directions_of_flax_are_asked_and_may_be_of_one_cell():
    rngs = nnx.Rngs(0)
    cell = nnx.SimpleCell(D, H, rngs=rngs)
    both = nnx.Bidirectional(nnx.RNN(cell), nnx.RNN(cell), rngs=rngs)
    close(interop.from_nnx(both).layer()(XS), both(XS))
    other = nnx.SimpleCell(D, H, activation_fn=nnx.relu, rngs=rngs)
    both = nnx.Bidirectional(nnx.RNN(cell), nnx.RNN(other), rngs=rngs)
    with pytest.raises(ValueError, match="'relu' and 'tanh'"):
        interop.from_nnx(both)
    half = {"forward_rnn": {"cell": nnx.state(cell, nnx.Param)}}
    with pytest.raises(ValueError, match=r"got \['forward_rnn'\]"):
        interop.from_nnx(half)
    linen = nn.Bidirectional(
        *(nn.RNN(nn.GRUCell(H, gate_fn=f)) for f in (jnp.sin,) * 2)
    )
    params = linen.init(jax.random.key(0), XS)["params"]
    with pytest.raises(ValueError, match="GRUCell has gate_fn='sin'"):
        interop.from_linen(params, module=linen)


@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_keras_gru_without_biases_is_read_as_it_was_made(reset_after, bidirectional):
    keras = pytest.importorskip("keras")
    layer = keras.layers.GRU(
        H,
        use_bias=False,
        reset_after=reset_after,
        return_sequences=True,
        dtype="float64",  # Keras 3.15 computes some of it in double if JAX may
    )
    layer = keras.layers.Bidirectional(layer) if bidirectional else layer
    wanted, arrays = layer(XS), layer.get_weights()
    close(interop.from_keras(layer).layer()(XS), wanted)
    close(interop.from_keras(arrays, reset_after=reset_after).layer()(XS), wanted)
    with pytest.raises(ValueError, match="one without biases does not tell"):
        interop.from_keras(arrays)
    with pytest.raises(ValueError, match="said to be \\[False, True\\]"):
        interop.from_keras(layer, reset_after=not reset_after)


@pytest.mark.parametrize(
    "make, match",
    [
        (
            lambda k: k.Bidirectional(
                k.SimpleRNN(H),
                backward_layer=k.SimpleRNN(H, activation="relu", go_backwards=True),
            ),
            "'relu' and 'tanh'",
        ),
        (
            lambda k: k.Bidirectional(
                k.LSTM(H, go_backwards=True), backward_layer=k.LSTM(H)
            ),
            "go_backwards=True",
        ),
        (lambda k: k.Bidirectional(k.LSTM(H), merge_mode="sum"), "merge_mode='sum'"),
        (lambda k: k.RNN(k.LSTMCell(H)), r"RNN, want one of keras's"),
        (lambda k: k.LSTM(H), None),
    ],
)
def test_keras_layers_that_are_not_ours_are_refused(make, match):
    layer = make(pytest.importorskip("keras").layers)
    if match is not None:
        layer.build((B, T, D))
    with pytest.raises(ValueError, match=match or "not built yet has none"):
        interop.from_keras(layer)


TORCH_CELLS = {
    "RNNCell": {"nonlinearity": "relu"},
    "LSTMCell": {},
    "GRUCell": {"bias": False},
}


@pytest.mark.parametrize("name", TORCH_CELLS)
def test_cells_of_torch_are_read(name):
    torch = pytest.importorskip("torch")
    cell = getattr(torch.nn, name)(D, H, **TORCH_CELLS[name])
    holder = torch.nn.ModuleDict({"decoder": cell})
    ys, h, c = [], torch.zeros(B, H), torch.zeros(B, H)
    for t in range(T):
        x = torch.tensor(XS[:, t])
        h, c = cell(x, (h, c)) if name == "LSTMCell" else (cell(x, h), c)
        ys.append(h.detach().numpy())
    weights = interop.from_torch(cell)
    close(weights.layer()(XS), np.stack(ys, axis=1))
    again = interop.from_torch(holder, prefix="decoder.")
    assert again.cell == weights.cell
    np.testing.assert_array_equal(
        again.layers[0][0]["kernel"], weights.layers[0][0]["kernel"]
    )
    with pytest.raises(ValueError, match="ModuleDict, want one of torch's RNN.*prefix"):
        interop.from_torch(holder)
    with pytest.raises(ValueError, match=r"give prefix='decoder\.'"):
        interop.from_torch(holder, prefix="encoder.")


LSTM = {
    "weight_ih_l0": np.ones([20, 3]),
    "weight_hh_l0": np.ones([20, 5]),
    "bias_ih_l0": np.ones(20),
    "bias_hh_l0": np.ones(20),
}
LINEN = {
    **{f"i{gate}": {"kernel": np.ones([3, 5])} for gate in "ifgo"},
    **{f"h{gate}": {"kernel": np.ones([5, 5]), "bias": np.ones(5)} for gate in "ifgo"},
}
NNX = {
    "dense_i": {"kernel": np.ones([3, 15]), "bias": np.ones(15)},
    "dense_h": {"kernel": np.ones([5, 15])},
}
EQUINOX = {
    "weight_ih": np.ones([15, 3]),
    "weight_hh": np.ones([15, 5]),
    "bias": np.ones(15),
    "bias_n": np.ones(5),
}
KERAS = [np.ones([3, 20]), np.ones([5, 20]), np.ones(20)]
HAIKU = {"lstm/linear": {"w": np.ones([8, 20]), "b": np.ones(20)}}
MLP = {
    "mlp/linear": {"w": np.ones([3, 5]), "b": np.ones(5)},
    "mlp/linear_1": {"w": np.ones([5, 5]), "b": np.ones(5)},
}


def test_torch_prefix_needs_no_dot_and_a_wrong_one_names_those_that_fit():
    held = {f"0.{name}": value for name, value in LSTM.items()}
    got = interop.from_torch(held, prefix="0").layers
    jax.tree.map(np.testing.assert_array_equal, got, interop.from_torch(LSTM).layers)
    with pytest.raises(ValueError, match=r"prefix='' is of no .*; give prefix='0\.'"):
        interop.from_torch(held)
    with pytest.raises(ValueError, match="the source has none"):
        interop.from_torch({"head.weight": np.ones(3)})


@pytest.mark.parametrize(
    "read, tree, match",
    [
        ("torch", LSTM | {"bias_ih_l0": np.ones(1)}, r"bias_ih_l0 .*\(1,\), want \[4H"),
        ("torch", LSTM | {"bias_hh_l0": np.ones(7)}, r"bias_hh_l0 .*\(7,\), want \[4H"),
        ("torch", LSTM | {"bias_hh_l0": None}, "bias_hh_l0 is a NoneType"),
        ("torch", LSTM | {"bias_hh_l0": 1j * np.ones(20)}, "bias_hh_l0 .* complex128"),
        ("torch", LSTM | {"bias_hh_l0": np.ones(20, int)}, "bias_hh_l0 .* int64"),
        ("torch", LSTM | {"weight_ch_l0": np.ones(20)}, "weight_ch_l0 is not a weight"),
        ("torch", LSTM | {"weight_hh": np.ones([20, 5])}, "end with '', '_l0'"),
        ("torch", LSTM | {"weight_hr_l0": np.ones([2, 5])}, r"weight_hh_l0 .* P\]"),
        (
            "linen",
            LINEN | {"hf": LINEN["hf"] | {"scale": 1.0}},
            "hf/scale is not a weight",
        ),
        ("linen", LINEN | {"ii": LINEN["hi"]}, "ii/bias is not a weight"),
        ("linen", LINEN | {"hf": LINEN["ii"]}, "there is no hf/bias"),
        ("nnx", NNX | {"dense_h": NNX["dense_h"] | {"b": 1.0}}, "dense_h/b is no"),
        (
            "nnx",
            NNX | {"dense_h": {"kernel": np.ones([5, 7])}},
            r"dense_h/kernel .*7\)",
        ),
        ("nnx", NNX | {"dense_i": {"kernel": np.ones([3, 15])}}, "no dense_i/bias"),
        ("equinox", EQUINOX | {"bais": np.ones(15)}, "bais is not a weight"),
        ("equinox", EQUINOX | {"bias_n": np.ones(4)}, r"bias_n .*\(4,\), want \[H\]"),
        ("keras", [*KERAS[:2], np.ones(1)], r"bias .*\(1,\), want \[4H\] with H=5"),
        ("keras", [np.ones([3, 16]), *KERAS[1:]], r"kernel .*\[D, 4H\] with H=5"),
        ("haiku", MLP, r"cores \[\].*these would fit: {'mlp': 'elman-relu'}"),
        ("haiku", HAIKU | {"lstm/norm": {"scale": np.ones(5)}}, r"cores \[\]"),
        ("haiku", {"lstm/linear": {"w": np.ones([5, 20]), "b": np.ones(20)}}, "D . H"),
    ],
)
def test_foreign_and_damaged_trees_are_refused_by_array(read, tree, match):
    with pytest.raises(ValueError, match=f"from_{read}: .*{match}"):
        getattr(interop, f"from_{read}")(tree)


def test_a_haiku_core_of_any_name_is_read_by_that_name():
    weights = interop.from_haiku(HAIKU)
    core = {"lm/core/linear": HAIKU["lstm/linear"]}
    with pytest.raises(ValueError, match="'lm/core': 'lstm'"):
        interop.from_haiku(core)
    named = interop.from_haiku(core, "lm/core")
    assert named.cell == weights.cell
    np.testing.assert_array_equal(
        named.layers[0][0]["bias"], weights.layers[0][0]["bias"]
    )


@pytest.mark.parametrize("to", [interop.to_torch, interop.to_keras])
def test_dropout_of_a_cell_does_not_stop_an_export(to):
    cell = scanrnn.cells.lstm(use_bias=False)
    wrapped = scanrnn.cells.dropout(cell, input=0.1)
    weights = [[cell.init(jax.random.key(0), 3, 5)]]
    found, wanted = (to(interop.Weights(one, weights)) for one in (wrapped, cell))
    chex.assert_trees_all_equal(found, wanted)


def test_a_cell_that_does_not_tell_its_sizes_has_no_layer():
    class Own(scanrnn.cells.Cell):
        def init(self, key, in_features, hidden_features, dtype=jnp.float32):
            return {"w": jnp.ones([in_features, hidden_features], dtype)}

        def initial_carry(self, params, x, dtype=None):
            return jnp.zeros([*x.shape[:-1], params["w"].shape[1]], dtype)

        def step(self, params, carry, x):
            carry = carry + x @ params["w"]
            return carry, carry

    weights = interop.Weights(Own(), [[Own().init(jax.random.key(0), 3, 5)]])
    with pytest.raises(ValueError, match="does not tell its sizes; make the layer"):
        weights.layer()


@pytest.mark.parametrize("name", ["bidirectional", "num_layers", "cell"])
def test_a_layer_of_weights_is_as_they_are(name):
    cell = scanrnn.cells.gru()
    weights = interop.Weights(cell, [[cell.init(jax.random.key(0), 3, 5)]])
    with pytest.raises(TypeError, match=f"^Weights.layer: {name} is known from the"):
        weights.layer(**{name: 2})


@pytest.mark.parametrize("library", ["linen", "nnx", "torch", "keras", "haiku"])
def test_exchanged_arguments_are_answered_with_the_names_of_all(library):
    name = f"from_{library}"
    with pytest.raises(TypeError, match=rf"^{name}: .*; its arguments are \w+"):
        getattr(interop, name)(object(), {}, {})


def test_weights_of_64_bits_make_a_layer_of_32_without_x64(in_32_bit):
    cell = scanrnn.cells.lstm()
    params = cell.init(jax.random.key(0), 3, 5)
    params = {name: np.asarray(value, np.float64) for name, value in params.items()}
    layer = interop.Weights(cell, [[params]]).layer()
    carry, ys = layer(jnp.ones([2, 4, 3]), return_carry=True)
    dtypes = {layer.param_dtype, carry.h.dtype, ys.dtype, layer.layers[0]["bias"].dtype}
    assert dtypes == {jnp.dtype("float32")}
