"""Compare the layers with Flax's own `nnx.RNN`, in float64, with the same weights."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import cells
from scanrnn.nnx import GRU, LSTM, RNN, Elman
from tests import oracles
from tests.cell_table import CELLS
from tests.oracles import gated

T, D, H = 5, 3, 4
FLAX = {  # our layer: Flax's cell, the dense of it with the bias, its carry from ours
    Elman: (nnx.SimpleCell, "dense_i", lambda carry: carry.h),
    LSTM: (nnx.OptimizedLSTMCell, "dense_h", lambda carry: (carry.c, carry.h)),
    GRU: (nnx.GRUCell, "dense_i", lambda carry: carry.h),
}
IN_FLOAT64 = {"dtype": jnp.float64, "param_dtype": jnp.float64}
every_layer = pytest.mark.parametrize("layer", FLAX, ids=lambda layer: layer.__name__)
float64 = functools.partial(jnp.asarray, dtype=jnp.float64)
close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def make(layer, *sizes, **options):
    """A layer in float64; no bias or gain has its initial value."""
    options = {"param_dtype": jnp.float64, "rngs": nnx.Rngs(0), **options}
    rnn = layer(*(sizes or (D, H)), **options)
    for index, params in enumerate(rnn.layers):
        for offset, (name, param) in enumerate(params.items()):
            if name == "recurrent_bias":
                continue  # Flax's GRU has none
            if param.ndim == 1:
                value = normal(*param.shape, seed=10 * index + offset)
                param[...] = value.astype(param.dtype)
    return rnn


def flax_twin(rnn, **options):
    """Flax's `RNN` with the weights of the first layer of `rnn`."""
    kind, bias_at, _ = FLAX[type(rnn)]
    sizes = rnn.in_features, rnn.hidden_features
    cell = kind(*sizes, **IN_FLOAT64, rngs=nnx.Rngs(0))
    params = rnn.layers[0]
    cell.dense_i.kernel[...] = params["kernel"][...]
    cell.dense_h.kernel[...] = params["recurrent_kernel"][...]
    getattr(cell, bias_at).bias[...] = params["bias"][...]
    return nnx.RNN(cell, **options)


def first_carry(rnn, batch, seed=1):
    """A carry for one layer that is not zero."""
    fields = rnn.cell.carry_type._fields
    values = [normal(*batch, H, seed=seed + k) for k, _ in enumerate(fields)]
    return rnn.cell.carry_type(*map(float64, values))


def test_every_cell_has_a_layer():
    layers = [
        value
        for name, value in vars(scanrnn.nnx).items()
        if isinstance(value, type)
        and issubclass(value, scanrnn.nnx.RNN)
        and hasattr(value, "_make")
    ]
    wrappers = {"residual", "highway", "zoneout", "dropout", "weight_drop"}
    wrappers |= {"learned_carry"}
    made = {layer._make.__name__ for layer in layers}
    assert made == {row.factory for row in CELLS.values()} - wrappers
    for layer in layers:
        name = layer._make.__name__.replace("_", "").lower()
        assert layer.__name__.lower() == name


CALLS = [
    dict(zip(("time_major", "reverse", "keep_order"), flags, strict=True))
    for flags in itertools.product([False, True], repeat=3)
]
named = functools.partial(
    pytest.mark.parametrize,
    ids=lambda call: "-".join(k for k, v in call.items() if v) or "plain",
)


def check_twins(rnn, call, batch):
    """Check for equal outputs and carries, from zeros and from a given carry."""
    twin, carry_of = flax_twin(rnn), FLAX[type(rnn)][2]
    shape = (T, *batch, D) if call.get("time_major") else (*batch, T, D)
    inputs, carry = float64(normal(*shape)), first_carry(rnn, batch)
    close(rnn(inputs, **call), twin(inputs, **call))
    got = rnn(inputs, initial_carry=carry, return_carry=True, **call)
    want = twin(inputs, initial_carry=carry_of(carry), return_carry=True, **call)
    jax.tree.map(close, (carry_of(got[0]), got[1]), want)


@named("call", CALLS)
def test_call_arguments_mean_what_flax_means(call):
    check_twins(make(LSTM), call, (2,))


@every_layer
@named("call", [{}, {"reverse": True, "time_major": True}])
def test_layer_equals_flax(layer, call):
    check_twins(make(layer), call, (2,))


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["none", "two"])
@named("call", [{}, {"time_major": True, "reverse": True, "keep_order": True}])
def test_any_number_of_batch_axes_equals_flax(call, batch):
    check_twins(make(GRU), call, batch)


@named("call", [{**call, "return_carry": True} for call in CALLS])
def test_constructor_sets_what_a_call_leaves_out(call):
    inputs = float64(normal(2, T, D) if not call["time_major"] else normal(T, 2, D))
    asked = make(Elman)(inputs, **call)
    jax.tree.map(close, make(Elman, **call)(inputs), asked)
    opposite = make(Elman, **{name: not value for name, value in call.items()})
    jax.tree.map(close, opposite(inputs, **call), asked)


@pytest.mark.parametrize("kind", [nnx.LSTMCell, *(row[0] for row in FLAX.values())])
@named("call", [{}, {"time_major": True, "reverse": True, "return_carry": True}])
def test_flax_cell_in_our_layer_equals_flax(kind, call):
    cell = kind(D, H, **IN_FLOAT64, rngs=nnx.Rngs(0))
    inputs = float64(normal(T, 2, D) if call else normal(2, T, D))
    jax.tree.map(close, RNN(cell)(inputs, **call), nnx.RNN(cell)(inputs, **call))


@nnx.jit
def bidirectional_run(layer, inputs):
    """The outputs and last carries of a layer, and the gradient of all of them."""

    def loss(layer, inputs):
        results = layer(inputs, return_carry=True)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results))

    gradient, for_inputs = nnx.grad(loss, argnums=(0, 1))(layer, inputs)
    return layer(inputs, return_carry=True), gradient, for_inputs


@pytest.mark.slow
@every_layer
@pytest.mark.parametrize("time_major", [False, True], ids=["batch_major", "time_major"])
def test_bidirectional_of_layers_equals_flax(layer, time_major):
    pair = [make(layer, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    ours = nnx.Bidirectional(*pair, time_major=time_major)
    theirs = nnx.Bidirectional(*map(flax_twin, pair), time_major=time_major)
    inputs = float64(normal(2, T, D))
    (carries, outputs), gradient, for_inputs = bidirectional_run(ours, inputs)
    want_results, want_gradient, want_for_inputs = bidirectional_run(theirs, inputs)
    _, bias_at, carry_of = FLAX[layer]
    jax.tree.map(close, (tuple(map(carry_of, carries)), outputs), want_results)
    close(for_inputs, want_for_inputs)
    for side in ("forward_rnn", "backward_rnn"):
        got, want = gradient[side]["layers"][0], want_gradient[side]["cell"]
        close(got["kernel"][...], want["dense_i"]["kernel"][...])
        close(got["recurrent_kernel"][...], want["dense_h"]["kernel"][...])
        close(got["bias"][...], want[bias_at]["bias"][...])


def test_bidirectional_of_flax_cells_in_our_layers_equals_flax():
    pair = [nnx.LSTMCell(D, H, **IN_FLOAT64, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    layers = (nnx.Bidirectional(*map(kind, pair)) for kind in (RNN, nnx.RNN))
    ours, theirs = (bidirectional_run(it, float64(normal(2, T, D))) for it in layers)
    jax.tree.map(close, jax.tree.leaves(ours), jax.tree.leaves(theirs))


@pytest.mark.parametrize("stream", [False, True], ids=["rngs", "stream"])
def test_rngs_draw_the_carry_of_a_flax_cell_as_in_flax(stream):
    cell = nnx.LSTMCell(D, H, **IN_FLOAT64, rngs=nnx.Rngs(0))
    cell.carry_init = nnx.initializers.normal()
    inputs = float64(normal(2, T, D))

    def run(kind, rngs):
        return kind(cell)(inputs, rngs=rngs.carry if stream else rngs)

    drawn = [nnx.Rngs(1), nnx.Rngs(1)]
    for _ in range(2):  # a second call draws another carry
        close(run(RNN, drawn[0]), run(nnx.RNN, drawn[1]))
    assert not jnp.allclose(run(RNN, nnx.Rngs(1)), run(RNN, drawn[0]))


@named("call", [{}, {"reverse": True}, {"reverse": True, "keep_order": True}])
def test_layers_lie_above_each_other(call):
    rnn = make(LSTM, num_layers=3, norm="ba2016", residual=True, return_carry=True)
    inputs = float64(normal(2, T, D))
    xs = np.swapaxes(inputs, 0, 1)
    xs = xs[::-1] if call.get("reverse") else xs
    carries = tuple(first_carry(rnn, (2,), seed=k) for k in range(3))
    lasts = []
    for index, carry in enumerate(carries):
        params = {k: np.asarray(v[...]) for k, v in rnn.layers[index].items()}
        step = gated.lstm("ba2016")
        step = gated.residual(step) if index else step
        last, xs = oracles.run(step, params, xs, tuple(map(np.asarray, carry)))
        lasts.append(last)
    xs = xs[::-1] if call.get("keep_order") else xs
    got, outputs = rnn(inputs, initial_carry=carries, **call)
    close(outputs, np.swapaxes(xs, 0, 1))
    for ours, theirs in zip(got, lasts, strict=True):
        jax.tree.map(close, tuple(ours), theirs)


def test_first_layer_is_residual_where_the_sizes_allow_it():
    inputs = float64(normal(2, T, H))
    plain, added = (make(GRU, H, H, residual=residual) for residual in (False, True))
    close(added(inputs), inputs + plain(inputs))


def test_a_sequence_in_pieces_equals_the_whole():
    rnn = make(LSTM, num_layers=2, integration="multiplicative", return_carry=True)
    inputs = float64(normal(2, T, D))
    carry, first = rnn(inputs[:, :2])
    carry, second = rnn(inputs[:, 2:], initial_carry=carry)
    whole_carry, whole = rnn(inputs)
    close(jnp.concatenate([first, second], axis=1), whole)
    jax.tree.map(close, carry, whole_carry)


def test_no_steps_give_no_outputs_and_the_first_carry():
    rnn = make(LSTM, num_layers=2, return_carry=True)
    carry, outputs = rnn(jnp.zeros([2, 0, D]))
    assert outputs.shape == (2, 0, H)
    assert not any(leaf.any() for leaf in jax.tree.leaves(carry))


def test_outputs_are_in_the_compute_dtype_and_carry_in_its_own():
    inputs = jnp.ones([2, T, D], jnp.float32)

    def dtypes(**options):
        options = {"param_dtype": jnp.float32, "return_carry": True, **options}
        carry, outputs = make(LSTM, num_layers=2, **options)(inputs)
        (carry_dtype,) = {leaf.dtype.name for leaf in jax.tree.leaves(carry)}
        return outputs.dtype.name, carry_dtype

    half = jnp.bfloat16
    assert dtypes() == ("float32", "float32")
    assert dtypes(dtype=half) == ("bfloat16", "float32")
    assert dtypes(param_dtype=half) == ("float32", "float32")
    assert dtypes(param_dtype=jnp.float64) == ("float64", "float64")
    assert dtypes(carry_dtype=half) == ("bfloat16", "bfloat16")
    assert dtypes(dtype=half, carry_dtype=jnp.float64) == ("bfloat16", "float64")


def test_weights_are_named_as_the_cell_names_them():
    rnn = LSTM(D, H, num_layers=2, norm="ba2016", rngs=nnx.Rngs(0))
    paths = {path for path, _ in nnx.to_flat_state(nnx.state(rnn))}
    names = cells.lstm(norm="ba2016").init(jax.random.key(0), D, H).keys()
    assert paths == {("layers", index, name) for index in (0, 1) for name in names}
    assert rnn.layers[0]["kernel"].shape == (D, 4 * H)
    assert rnn.layers[1]["kernel"].shape == (H, 4 * H)


def test_weights_follow_the_rngs():
    first, same, other = (Elman(D, H, rngs=nnx.Rngs(seed)) for seed in (0, 0, 1))
    kernels = [rnn.layers[0]["kernel"][...] for rnn in (first, same, other)]
    assert (kernels[0] == kernels[1]).all()
    assert not (kernels[0] == kernels[2]).any()
    two = Elman(H, H, num_layers=2, rngs=nnx.Rngs(0)).layers
    assert not (two[0]["kernel"][...] == two[1]["kernel"][...]).any()


@pytest.mark.parametrize("implementation", [None, "scan"])
def test_implementation_and_unroll_reach_the_scan(implementation, monkeypatch):
    calls = []

    def scan(f, init, xs, **options):
        calls.append(options)
        return jax.lax.scan(f, init, xs)

    monkeypatch.setattr("scanrnn.layers._sequence.scan", scan)
    make(GRU, unroll=2, implementation=implementation)(jnp.ones([2, T, D]))
    wanted = {"reverse": False, "unroll": 2, "implementation": implementation}
    assert calls == [wanted]


def test_layers_of_a_stack_may_differ():
    """Each layer has its cell and its size. The stack equals the layers in a row."""
    pair, sizes = [cells.lstm(), cells.gru(norm="ba2016")], [H, 2]
    rnn = RNN(pair, D, sizes, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    inputs = float64(normal(2, T, D))
    carry, outputs = rnn(inputs, return_carry=True)
    for index, (cell, size) in enumerate(zip(pair, sizes, strict=True)):
        below = inputs.shape[-1]
        one = RNN(cell, below, size, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        for name, weight in rnn.layers[index].items():
            one.layers[0][name][...] = weight[...]
        last, inputs = one(inputs, return_carry=True)
        jax.tree.map(close, carry[index], last)
    close(outputs, inputs)
    again = rnn(outputs[..., :1] * jnp.ones(D), initial_carry=carry)
    assert again.shape == (2, T, 2)


@pytest.mark.parametrize("kind", [nnx, scanrnn.linen], ids=["nnx", "linen"])
def test_a_scheme_may_be_a_function(kind):
    """The function takes the size of the carry, like one that `chrono` makes."""
    scheme = cells.chrono(100)
    key = jax.random.key(0)
    if kind is nnx:
        rnn = LSTM(D, H, scheme=scheme, rngs=nnx.Rngs(0))
        bias = rnn.layers[0]["bias"][...]
    else:
        variables = kind.LSTM(H, scheme=scheme).init(key, jnp.ones([2, T, D]))
        bias = variables["params"]["layers_0"]["bias"]
    i, f, _, _ = jnp.split(bias, 4)
    assert (f >= 0).all() and f.max() <= jnp.log(100.0) and (i == -f).all()
