"""Compare the Linen layers with Flax's own, and with our NNX layers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import scanrnn
from scanrnn import cells
from scanrnn.linen import GRU, LSTM, RNN, Bidirectional

T, B, D, H = 5, 3, 3, 4
KEY = jax.random.key(0)
IN_FLOAT64 = {"dtype": jnp.float64, "param_dtype": jnp.float64}
FLAX_CELLS = {
    kind.__name__: kind
    for kind in (
        nn.LSTMCell,
        nn.OptimizedLSTMCell,
        nn.SimpleCell,
        nn.GRUCell,
        nn.MGUCell,
    )
}
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)
CALLS = [
    dict(zip(("time_major", "reverse", "keep_order"), flags, strict=True))
    for flags in itertools.product([False, True], repeat=3)
]
every_call = pytest.mark.parametrize(
    "call", CALLS, ids=lambda call: "-".join(k for k, v in call.items() if v) or "plain"
)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def inputs_for(call, *batch):
    return normal(T, *batch, D) if call.get("time_major") else normal(*batch, T, D)


def results(module, variables, xs, **call):
    """Outputs, last carry, and gradients with respect to weights and inputs."""

    def run(params, xs):
        return module.apply({"params": params}, xs, return_carry=True, **call)

    def loss(params, xs):
        return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(run(params, xs)))

    params = variables["params"]
    return run(params, xs), jax.grad(loss, argnums=(0, 1))(params, xs)


def valid(ys, lengths, call):
    """Batch-major outputs, with zeros in the padding, where Flax's cell runs on."""
    ys = jnp.swapaxes(ys, 0, 1) if call.get("time_major") else ys
    counts = jnp.arange(T) < (T if lengths is None else lengths[:, None])
    return jnp.where(counts[..., None], ys, 0)


def same(got, want):
    jax.tree.map(close, jax.tree.leaves(got), jax.tree.leaves(want))


@pytest.mark.parametrize("kind", FLAX_CELLS.values(), ids=FLAX_CELLS)
def test_a_changed_import_draws_the_same_weights_and_runs_alike(kind):
    """Every cell of Flax has the same weights for the same key, and the same names."""
    cell, xs = kind(H, **IN_FLOAT64), normal(B, T, D)
    ours, theirs = RNN(cell), nn.RNN(cell)
    variables, wanted = ours.init(KEY, xs), theirs.init(KEY, xs)
    assert jax.tree.structure(variables) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, variables, wanted)
    same(results(ours, variables, xs), results(theirs, wanted, xs))


@every_call
@pytest.mark.parametrize("lengths", [None, [T, 2, 1]], ids=["", "lengths"])
def test_call_arguments_mean_what_flax_means(call, lengths):
    cell, xs = nn.GRUCell(H, **IN_FLOAT64), inputs_for(call, B)
    lengths = None if lengths is None else jnp.array(lengths)
    ours, theirs = RNN(cell), nn.RNN(cell)
    variables = theirs.init(KEY, xs, **call)
    want = theirs.apply(variables, xs, seq_lengths=lengths, return_carry=True, **call)
    run = functools.partial(ours.apply, variables, xs, seq_lengths=lengths)
    # The same options, given to the constructor.
    set_before = functools.partial(
        RNN(cell, **call, return_carry=True).apply, variables, xs, seq_lengths=lengths
    )
    for carry, ys in (run(return_carry=True, **call), set_before()):
        same(carry, want[0])
        same(valid(ys, lengths, call), valid(want[1], lengths, call))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_any_number_of_batch_axes_equals_flax(batch):
    cell, xs = nn.LSTMCell(H, **IN_FLOAT64), normal(*batch, T, D)
    variables = RNN(cell).init(KEY, xs)
    same(results(RNN(cell), variables, xs), results(nn.RNN(cell), variables, xs))


def test_positional_fields_are_those_of_flax():
    cell, xs = nn.GRUCell(H, **IN_FLOAT64), normal(T, B, D)
    fields = cell, True, True, True, True, 2
    variables = nn.RNN(*fields).init(KEY, xs)
    same(RNN(*fields).apply(variables, xs), nn.RNN(*fields).apply(variables, xs))


def test_init_key_draws_the_carry_of_a_flax_cell_as_in_flax():
    normal_carry = nn.initializers.normal()
    cell = nn.GRUCell(H, carry_init=normal_carry, **IN_FLOAT64)
    xs, key = normal(B, T, D), jax.random.key(1)
    variables = RNN(cell).init(KEY, xs)
    got = RNN(cell).apply(variables, xs, init_key=key)
    close(got, nn.RNN(cell).apply(variables, xs, init_key=key))
    assert not jnp.allclose(got, RNN(cell).apply(variables, xs))


@pytest.mark.slow
@pytest.mark.parametrize("time_major", [False, True], ids=["", "time_major"])
def test_bidirectional_equals_flax(time_major):
    xs = inputs_for({"time_major": time_major}, B)
    call, lengths = {"time_major": time_major}, jnp.array([T, 2, 1])
    pair = [nn.GRUCell(H, **IN_FLOAT64) for _ in range(2)]
    ours = Bidirectional(*map(RNN, pair), time_major=time_major)
    theirs = nn.Bidirectional(*map(nn.RNN, pair), time_major=time_major)
    variables = theirs.init(KEY, xs)
    jax.tree.map(np.testing.assert_array_equal, ours.init(KEY, xs), variables)
    same(results(ours, variables, xs), results(theirs, variables, xs))
    (carry, ys), (want_carry, want) = (
        rnn.apply(variables, xs, seq_lengths=lengths, return_carry=True)
        for rnn in (ours, theirs)
    )
    same(carry, want_carry)
    same(valid(ys, lengths, call), valid(want, lengths, call))


def test_one_layer_for_both_directions_shares_its_weights():
    xs, layer = normal(B, T, D), GRU(H, param_dtype=jnp.float64)
    both = Bidirectional(layer, layer)
    variables = both.init(KEY, xs)
    assert list(variables["params"]) == ["forward_rnn"]
    params = {"params": variables["params"]["forward_rnn"]}
    back = layer.apply(params, xs, reverse=True, keep_order=True)
    want = jnp.concatenate([layer.apply(params, xs), back], axis=-1)
    close(both.apply(variables, xs), want)


# Our own cells.


def twin_of(params):
    """The weights of a Linen layer in the form of NNX layers: lists of dicts."""
    names = sorted(params, key=lambda name: int(name.rsplit("_", 1)[1]))
    return {
        side: [params[name] for name in names if name.rsplit("_", 1)[0] == side]
        for side in ("layers", "backward_layers")
    }


def check_twins(linen_layer, nnx_layer, xs, **call):
    variables = linen_layer.init(KEY, xs)
    for side, dicts in twin_of(variables["params"]).items():
        for params, ours in zip(dicts, getattr(nnx_layer, side), strict=True):
            assert set(params) == set(ours)
            for name, value in params.items():
                ours[name][...] = value
    (carry, ys), _ = results(linen_layer, variables, xs, **call)
    same((carry, ys), nnx_layer(xs, return_carry=True, **call))


def every_layer():
    """All layers; some of them are quick."""
    for name in sorted(set(vars(scanrnn.nnx)) - {"Bidirectional"}):
        quick = name in ("LSTM", "GRU", "ConvLSTM", "LRU", "MLSTM")
        yield pytest.param(name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("name", list(every_layer()))
def test_every_nnx_layer_has_a_linen_twin(name):
    make = getattr(scanrnn.nnx, name)
    if name.startswith("_") or name.endswith("Cell") or not hasattr(make, "_make"):
        return
    options = {"kernel_size": 3} if name.startswith("Conv") else {}
    sizes = (4, D) if options else (D,)
    xs = normal(2, 3, *sizes)
    linen_layer = getattr(scanrnn.linen, name)(D, param_dtype=jnp.float64, **options)
    rngs = nnx.Rngs(0)
    nnx_layer = make(D, D, param_dtype=jnp.float64, **options, rngs=rngs)
    check_twins(linen_layer, nnx_layer, xs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 3, "residual": "gnmt", "norm": "ba2016"},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "highway": True},
        {"num_layers": 2, "residual": True, "zero_padding": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_stacks_equal_their_twins(options):
    xs, call = normal(B, T, H), {"seq_lengths": jnp.array([T, 2, 0])}
    options = {"param_dtype": jnp.float64, **options}
    check_twins(
        LSTM(H, **options),
        scanrnn.nnx.LSTM(H, H, **options, rngs=nnx.Rngs(0)),
        xs,
        **call,
    )


@pytest.mark.parametrize(
    "call",
    [
        {"mask": np.array([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1] * T], bool)},
        {"segment_ids": np.array([[1, 1, 2, 2, 0], [5, 3, 3, 0, 7], [1] * T])},
        {"resets": np.array([[0, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0] * T], bool)},
        {"return_all_carries": True, "include_initial": True, "reverse": True},
    ],
    ids=lambda call: next(iter(call)),
)
def test_sequences_equal_those_of_the_twin(call):
    options = {"param_dtype": jnp.float64}
    pair = GRU(H, **options), scanrnn.nnx.GRU(D, H, **options, rngs=nnx.Rngs(0))
    check_twins(*pair, normal(B, T, D), **call)


def test_layers_may_differ():
    xs = normal(B, T, D)
    pair = [cells.lstm(), cells.gru(norm="rms")]
    rnn = RNN(pair, features=[H, 2], param_dtype=jnp.float64)
    twin = scanrnn.nnx.RNN(pair, D, [H, 2], param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    check_twins(rnn, twin, xs)
    assert rnn.init_with_output(KEY, xs)[0].shape == (B, T, 2)


def test_a_field_may_be_a_list_and_the_module_is_hashable():
    kernels = {"kernel_size": [3, 3]}
    for listed, plain in (
        (LSTM([H, D]), LSTM((H, D))),
        (
            RNN([cells.gru()] * 2, features=[H, D]),
            RNN((cells.gru(),) * 2, features=(H, D)),
        ),
        (
            scanrnn.linen.ConvLSTM(H, **kernels),
            scanrnn.linen.ConvLSTM(H, kernel_size=(3, 3)),
        ),
        (RNN(nn.GRUCell(H), split_rngs={"params": False}), RNN(nn.GRUCell(H))),
    ):
        assert listed == plain and hash(listed) == hash(plain)


def test_noise_is_drawn_from_the_dropout_stream():
    xs = normal(B, T, D)
    rnn = LSTM(H, num_layers=2, dropout=0.5, recurrent_dropout=0.3)
    variables = rnn.init(KEY, xs)  # needs no noise
    with pytest.raises(ValueError, match="deterministic is None"):
        rnn.apply(variables, xs)
    with pytest.raises(ValueError, match='rngs={"dropout"'):
        rnn.apply(variables, xs, deterministic=False)
    quiet = rnn.apply(variables, xs, deterministic=True)
    runs = [
        rnn.apply(
            variables, xs, deterministic=False, rngs={"dropout": jax.random.key(seed)}
        )
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2]) and not np.allclose(runs[0], quiet)
    training = rnn.clone(deterministic=False)
    same(training.apply(variables, xs, rngs={"dropout": jax.random.key(1)}), runs[0])


def test_outputs_have_the_compute_dtype_and_the_carry_its_own():
    xs = jnp.ones([B, T, D], jnp.bfloat16)
    rnn = GRU(H, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    (carry, ys), variables = rnn.init_with_output(KEY, xs, return_carry=True)
    assert ys.dtype == jnp.bfloat16 and carry.h.dtype == jnp.float32
    assert {a.dtype for a in jax.tree.leaves(variables)} == {jnp.dtype(jnp.bfloat16)}


def test_an_initializer_says_how_weights_are_sharded():
    split = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
    rnn = LSTM(H, num_layers=2, kernel_init=split, bias_init=None)
    variables = rnn.init(KEY, normal(B, T, D))
    for index in range(2):
        params = variables["params"][f"layers_{index}"]
        assert params["kernel"].names == (None, "model")
        assert isinstance(params["recurrent_kernel"], jax.Array)
    plain = nn.unbox(variables)
    xs = normal(B, T, D)
    np.testing.assert_array_equal(rnn.apply(variables, xs), rnn.apply(plain, xs))


# Cells that keep other variables besides weights.


class Busy(nn.RNNCellBase):
    """A cell with batch statistics, a dropout mask, and a sown value."""

    rate: float = 0.0

    @nn.compact
    def __call__(self, carry, x):
        x = nn.BatchNorm(use_running_average=False, param_dtype=x.dtype)(x)
        kept = nn.Dropout(self.rate, deterministic=False)(jnp.ones_like(carry))
        self.sow("intermediates", "kept", kept)
        dense = nn.Dense(H, param_dtype=x.dtype)(jnp.concatenate([carry, x], axis=-1))
        carry = jnp.tanh(dense) * kept
        return carry, carry

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros((*input_shape[:-1], H))

    @property
    def num_feature_axes(self):
        return 1


STATEFUL = {"variable_carry": "batch_stats", "variable_axes": {"intermediates": 0}}
MUTABLE = ["batch_stats", "intermediates"]


def stateful(kind, split=True, rate=0.0):
    return kind(Busy(rate), **STATEFUL, split_rngs={"params": False, "dropout": split})


def busy_inputs():
    return normal(B, T, D).astype(jnp.float32)


def busy_variables(xs):
    rngs = {"params": KEY, "dropout": KEY}
    variables = stateful(RNN).init(rngs, xs)
    return {name: variables[name] for name in ("params", "batch_stats")}


def test_a_cell_with_a_state_equals_flax():
    xs = busy_inputs()
    variables = busy_variables(xs)
    runs = []
    for kind in (RNN, nn.RNN):
        y, new = stateful(kind).apply(
            variables, xs, rngs={"dropout": KEY}, mutable=MUTABLE
        )
        runs.append((y, new))
    assert jax.tree.structure(runs[0]) == jax.tree.structure(runs[1])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *runs)
    before = variables["batch_stats"]["cell"]["BatchNorm_0"]["mean"]
    assert not np.allclose(
        runs[0][1]["batch_stats"]["cell"]["BatchNorm_0"]["mean"], before
    )


@pytest.mark.parametrize("split", [True, False], ids=["split", "shared"])
def test_split_rngs_says_whether_steps_share_their_noise(split):
    xs = busy_inputs()
    _, new = stateful(RNN, split, rate=0.5).apply(
        busy_variables(xs), xs, rngs={"dropout": KEY}, mutable=MUTABLE
    )
    (kept,) = new["intermediates"]["cell"]["kept"]
    assert kept.shape == (T, B, H)
    assert all(np.array_equal(kept[0], row) for row in kept) != split


# Transforms of Linen, and the bridge to NNX.


@pytest.mark.parametrize("lift", [nn.jit, nn.remat], ids=["jit", "remat"])
def test_lifted_transforms_take_a_layer(lift):
    xs = normal(B, T, D)
    layer, lifted = (
        kind(H, norm="ba2016", param_dtype=jnp.float64) for kind in (GRU, lift(GRU))
    )
    variables = layer.init(KEY, xs)

    def loss(params, module):
        return jnp.sum(jnp.sin(module.apply({"params": params}, xs)))

    got, want = (jax.grad(loss)(variables["params"], it) for it in (lifted, layer))
    same(got, want)


def test_vmap_makes_an_ensemble():
    xs = normal(B, T, D)
    many = nn.vmap(
        GRU,
        in_axes=None,
        axis_size=3,
        variable_axes={"params": 0},
        split_rngs={"params": True},
    )(H, param_dtype=jnp.float64)
    variables = many.init(KEY, xs)
    ys = many.apply(variables, xs)
    for index in range(3):
        one = jax.tree.map(lambda a, index=index: a[index], variables)
        close(ys[index], GRU(H, param_dtype=jnp.float64).apply(one, xs))


@pytest.mark.slow
def test_a_scan_over_equal_layers_equals_the_stack():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return GRU(D, residual=True, param_dtype=jnp.float64)(x), None

    xs = normal(B, T, D)
    deep = nn.scan(
        Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
    )()
    variables = deep.init(KEY, xs, None)
    weights = variables["params"]["GRU_0"]["layers_0"]
    stack = GRU(D, num_layers=3, residual=True, param_dtype=jnp.float64)
    params = {
        f"layers_{i}": {name: value[i] for name, value in weights.items()}
        for i in range(3)
    }
    close(deep.apply(variables, xs, None)[0], stack.apply({"params": params}, xs))


def test_bridges_lead_both_ways():
    xs = normal(B, T, D)
    model = nnx.bridge.ToNNX(GRU(H, param_dtype=jnp.float64), rngs=nnx.Rngs(0))
    model = nnx.bridge.lazy_init(model, xs)
    params = {"params": {"layers_0": nnx.to_pure_dict(nnx.state(model))["layers_0"]}}
    close(model(xs), GRU(H, param_dtype=jnp.float64).apply(params, xs))
    back = nnx.bridge.to_linen(scanrnn.nnx.GRU, D, H, param_dtype=jnp.float64)
    variables = back.init(KEY, xs)
    assert back.apply(variables, xs).shape == (B, T, H)
    grads = jax.grad(lambda p: back.apply(p, xs).sum(), allow_int=True)(variables)
    assert jax.tree.structure(grads) == jax.tree.structure(variables)


def test_export_takes_symbolic_batch_and_time():
    rnn = LSTM(H, num_layers=2, norm="ba2016")
    xs = normal(B, T, D).astype(jnp.float32)
    variables = rnn.init(KEY, xs)
    b, t = jax.export.symbolic_shape("b, t")
    run = jax.jit(functools.partial(rnn.apply, variables))
    exported = jax.export.export(run)(jax.ShapeDtypeStruct((b, t, D), jnp.float32))
    for shape in [(1, 1), (2, 7)]:
        some = normal(*shape, D).astype(jnp.float32)
        np.testing.assert_allclose(exported.call(some), run(some), atol=1e-6)


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: LSTM(0), ValueError, "RNN: features must be at least 1"),
        (lambda: LSTM(H, num_layers=0), ValueError, "num_layers must be at least 1"),
        (lambda: LSTM(H, norm="batch"), ValueError, "norm='batch'"),
        (lambda: LSTM(H, residual="all"), ValueError, "residual='all'"),
        (lambda: LSTM(H, param_dtype=int), TypeError, "param_dtype"),
        (lambda: LSTM(H, implementation="fast"), ValueError, "implementation='fast'"),
        (lambda: RNN(cells.lstm()), TypeError, "RNN: features must be an int"),
        (lambda: RNN("lstm", features=H), TypeError, "cell must be a scanrnn.cells"),
        (lambda: RNN(nn.Dense(H)), TypeError, "got Dense, a module that is no"),
        (lambda: RNN(nn.GRUCell), TypeError, "got the class GRUCell; write GRUCell"),
        (lambda: RNN([nn.GRUCell(H)]), TypeError, "a list with GRUCell of flax.lin"),
        (
            lambda: RNN(nnx.GRUCell(D, H, rngs=nnx.Rngs(0))),
            TypeError,
            "got GRUCell of flax.nnx, for which there is scanrnn.nnx.RNN",
        ),
        (lambda: RNN(nn.GRUCell(H), features=H), ValueError, "features beside GRUC"),
        (lambda: RNN(nn.GRUCell(H), num_layers=2), ValueError, "num_layers beside"),
        (lambda: RNN(nn.GRUCell(H), wavefront=True), ValueError, "wavefront beside"),
    ],
)
def test_bad_fields_are_refused(make, kind, words):
    with pytest.raises(kind, match=words):
        make().init(KEY, jnp.ones([B, T, D]))


@pytest.mark.parametrize(
    "call, kind, words",
    [
        ({"seq_lengths": jnp.array([1.0] * B)}, TypeError, "seq_lengths has dtype"),
        ({"seq_lengths": jnp.array([T + 1] * B)}, ValueError, "want 0 to 5"),
        ({"mask": jnp.ones([B, T])}, TypeError, "mask has dtype"),
        ({"initial_carry": jnp.ones([B, H])}, TypeError, "initial_carry"),
    ],
)
@pytest.mark.parametrize("cell", [cells.gru(), nn.LSTMCell(H)], ids=["ours", "flax"])
def test_bad_calls_are_refused(cell, call, kind, words):
    rnn = RNN(cell, features=H) if isinstance(cell, cells.Cell) else RNN(cell)
    with pytest.raises(kind, match=words):
        rnn.init(KEY, jnp.ones([B, T, D]), **call)


def test_first_carry_of_a_cell_has_no_nan_on_its_way():
    cell = scanrnn.linen.RNNCell(cells.lstm(), 5)
    with jax.debug_nans(True):
        carry = cell.initialize_carry(jax.random.key(0), (2, 3))
        variables = nn.RNN(cell).init(jax.random.key(0), jnp.ones((2, 4, 3)))
    assert carry.c.shape == (2, 5)
    assert variables["params"]
