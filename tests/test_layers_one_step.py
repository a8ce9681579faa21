"""One step of a cell as a module: compared with the cell, its layer, and Flax."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import scanrnn
from scanrnn import cells
from tests.cell_table import CELLS, ONE_ROW_EACH, B, H, T

KEY = jax.random.key(0)
same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
close = functools.partial(
    jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
)
WRAPPERS = {"residual", "highway", "zoneout", "dropout", "weight_drop", "learned_carry"}


def inputs(row, seed=0):
    shape = (T, B, *row.spatial, row.in_features)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_every_cell_has_a_module():
    for room in (scanrnn.nnx, scanrnn.linen):
        found = [v for name, v in vars(room).items() if name.endswith("Cell")]
        made = {kind._make.__name__ for kind in found if hasattr(kind, "_make")}
        assert made == {row.factory for row in CELLS.values()} - WRAPPERS
        flax = {"nnx": nnx, "linen": nn}[room.__name__.split(".")[-1]]
        theirs = {n for n in dir(flax) if n.endswith("Cell")} & set(vars(room))
        assert theirs >= {"LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"}
        assert all(issubclass(getattr(room, n), getattr(flax, n)) for n in theirs)


@pytest.mark.parametrize("row", ONE_ROW_EACH)
def test_a_step_is_the_cells_with_the_weights_of_its_layer(row):
    cell, xs = row.cell, inputs(row)
    module = scanrnn.nnx.RNNCell(cell, row.in_features, H, rngs=nnx.Rngs(0))
    layer = scanrnn.nnx.RNN(cell, row.in_features, H, rngs=nnx.Rngs(0))
    same(nnx.to_pure_dict(nnx.state(module)), nnx.to_pure_dict(nnx.state(layer)))
    ((_, params),) = module.stack[0]
    twin = scanrnn.linen.RNNCell(cell, H)
    variables = {"params": {"layers_0": params}}
    carry = module.initialize_carry(xs[0].shape)
    first = twin.apply(variables, KEY, xs[0].shape, method="initialize_carry")
    same(carry, first)
    same(carry, cell.initial_carry(params, xs[0]))
    got = module(carry, xs[0], deterministic=True)
    assert module.num_feature_axes == twin.num_feature_axes == cell.num_feature_axes
    want = cell.step(params, carry, xs[0])
    same(got, want)
    same(twin.apply(variables, carry, xs[0], deterministic=True), want)


@pytest.mark.slow
@pytest.mark.parametrize("row", ONE_ROW_EACH)
def test_every_loop_takes_a_module(row):
    cell, xs = row.cell, inputs(row)
    module = scanrnn.nnx.RNNCell(cell, row.in_features, H, rngs=nnx.Rngs(0))
    module.eval()
    ((_, params),) = module.stack[0]
    layer = scanrnn.nnx.RNN(cell, row.in_features, H, rngs=nnx.Rngs(0))
    call = {"time_major": True, "return_carry": True}
    want = layer(xs, deterministic=True, **call)
    close(scanrnn.nnx.RNN(module)(xs, deterministic=True, **call), want)
    close(nnx.RNN(module)(xs, **call), want)
    twin = scanrnn.linen.RNNCell(cell, H, deterministic=True)
    variables = {"params": {"cell": {"layers_0": params}}}
    for rnn in (scanrnn.linen.RNN(twin, deterministic=True), nn.RNN(twin)):
        close(rnn.apply(variables, xs, **call), want)


def test_a_layer_of_a_module_is_a_layer_of_its_cell():
    """This holds with lengths and resets too."""
    cell, xs = cells.lstm(norm="ba2016"), inputs(CELLS["lstm"]).swapaxes(0, 1)
    module = scanrnn.nnx.RNNCell(cell, 3, H, rngs=nnx.Rngs(0))
    rnn, layer = scanrnn.nnx.RNN(module), scanrnn.nnx.RNN(cell, 3, H, rngs=nnx.Rngs(0))
    call = {
        "seq_lengths": jnp.array([T, 1]),
        "resets": jnp.array([[False, False, True]] * B),
        "return_carry": True,
        "reverse": True,
    }

    close(rnn(xs, **call), layer(xs, **call))
    twin = scanrnn.linen.RNN(scanrnn.linen.RNNCell(cell, H))
    variables = {"params": {"cell": {"layers_0": module.stack[0][0].params}}}
    close(twin.apply(variables, xs, **call), layer(xs, **call))
    shapes = functools.partial(jax.tree.map, jnp.shape)
    assert shapes(twin.init(KEY, xs)) == shapes(variables)


@pytest.mark.slow
def test_gradients_of_a_layer_of_a_module_are_those_of_its_cell():
    cell, xs = cells.lstm(norm="ba2016"), inputs(CELLS["lstm"]).swapaxes(0, 1)
    module = scanrnn.nnx.RNNCell(cell, 3, H, rngs=nnx.Rngs(0))
    layer = scanrnn.nnx.RNN(cell, 3, H, rngs=nnx.Rngs(0))
    lengths = jnp.array([T, 1])

    def run(rnn):
        return sum(
            jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(rnn(xs, seq_lengths=lengths))
        )

    got, want = nnx.grad(run)(scanrnn.nnx.RNN(module)), nnx.grad(run)(layer)
    close(nnx.to_pure_dict(got["cell"]), nnx.to_pure_dict(want))


def test_a_subclass_with_a_step_of_its_own_is_run_by_it():
    class Doubled(scanrnn.nnx.RNNCell):
        def __call__(self, carry, inputs, **options):
            carry, y = super().__call__(carry, inputs, **options)
            return carry, 2 * y

    class Twice(scanrnn.linen.RNNCell):
        def __call__(self, carry, inputs, **options):
            carry, y = super().__call__(carry, inputs, **options)
            return carry, 2 * y

    xs = inputs(CELLS["gru"])
    plain = scanrnn.nnx.RNN(cells.gru(), 3, H, rngs=nnx.Rngs(0))
    module = Doubled(cells.gru(), 3, H, rngs=nnx.Rngs(0))
    close(scanrnn.nnx.RNN(module)(xs), 2 * plain(xs))
    twin = scanrnn.linen.RNN(Twice(cells.gru(), H))
    variables = {"params": {"cell": {"layers_0": module.stack[0][0].params}}}
    close(twin.apply(variables, xs), 2 * plain(xs))


# Cells by Flax's names.

NNX = ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"]
LINEN = [*NNX, "MGUCell", "ConvLSTMCell"]


@pytest.mark.parametrize("name", NNX)
def test_nnx_cells_of_flax_start_and_step_as_flax(name):
    ours, theirs = (
        getattr(room, name)(3, H, rngs=nnx.Rngs(0)) for room in (scanrnn.nnx, nnx)
    )
    same(*(nnx.to_pure_dict(nnx.state(cell, nnx.Param)) for cell in (ours, theirs)))
    x = inputs(CELLS["lstm"])[0]
    same(ours.initialize_carry(x.shape), theirs.initialize_carry(x.shape, nnx.Rngs(0)))
    normal = nnx.initializers.normal()
    carry = ours.initialize_carry(x.shape, nnx.Rngs(1), normal)
    same(carry, theirs.initialize_carry(x.shape, nnx.Rngs(1), normal))
    got, want = ours(carry, x), theirs(carry, x)
    close(got, want)  # the structure of the carry, too
    named = (
        ours._carry.from_flax(carry)
        if len(carry) == 2 and name[-8:] == "LSTMCell"
        else ours._carry(carry)
    )
    kept, y = ours(named, x)
    assert type(kept) is ours._carry and (y == got[1]).all()


@pytest.mark.parametrize("name", LINEN)
def test_linen_cells_of_flax_start_and_step_as_flax(name):
    options = {"kernel_size": (3,)} if name.startswith("Conv") else {}
    ours, theirs = (
        getattr(room, name)(H, **options, carry_init=nn.initializers.normal())
        for room in (scanrnn.linen, nn)
    )
    x = inputs(CELLS["conv_lstm" if options else "lstm"])[0]
    carry = ours.initialize_carry(KEY, x.shape)
    same(carry, theirs.initialize_carry(KEY, x.shape))
    variables = ours.init(KEY, carry, x)
    same(variables, theirs.init(KEY, carry, x))
    # Now no bias is zero.
    variables = jax.tree.map(lambda a: a + 0.1, variables)
    close(ours.apply(variables, carry, x), theirs.apply(variables, carry, x))


def test_loops_of_flax_take_cells_by_its_names():
    xs = inputs(CELLS["lstm"])
    ours, theirs = (
        room.LSTMCell(3, H, rngs=nnx.Rngs(0)) for room in (scanrnn.nnx, nnx)
    )
    want = nnx.RNN(theirs, time_major=True)(xs)
    for rnn in (scanrnn.nnx.RNN, nnx.RNN):
        close(rnn(ours, time_major=True)(xs), want)
    over = functools.partial(
        nn.scan, variable_broadcast="params", split_rngs={"params": False}
    )
    one, other = over(scanrnn.linen.LSTMCell)(H), over(nn.LSTMCell)(H)
    carry = one.initialize_carry(KEY, xs[0].shape)
    variables = one.init(KEY, carry, xs)
    same(variables, other.init(KEY, carry, xs))
    close(one.apply(variables, carry, xs), other.apply(variables, carry, xs))


@pytest.mark.parametrize(
    "name, options",
    [
        ("LSTMCell", {"gate_fn": jax.nn.relu, "activation_fn": jax.nn.elu}),
        ("OptimizedLSTMCell", {"activation_fn": jax.nn.relu}),
        ("SimpleCell", {"residual": True}),
        ("MGUCell", {"reset_gate": False}),
    ],
)
def test_what_changes_the_equations_runs_flax(name, options):
    x = inputs(CELLS["lstm"])[0]
    ours, theirs = (
        getattr(room, name)(H, **options, carry_init=nn.initializers.ones)
        for room in (scanrnn.linen, nn)
    )
    carry = theirs.initialize_carry(KEY, x.shape)
    variables = theirs.init(KEY, carry, x)
    same(ours.init(KEY, carry, x), variables)
    want = theirs.apply(variables, carry, x)
    same(ours.apply(variables, carry, x), want)
    if name in NNX:
        ours, theirs = (
            getattr(room, name)(3, H, rngs=nnx.Rngs(0), **options)
            for room in (scanrnn.nnx, nnx)
        )
        same(ours(carry, x), theirs(carry, x))
        with pytest.raises(ValueError, match="norm goes with .* but .* changes them"):
            getattr(scanrnn.nnx, name)(3, H, norm="rms", rngs=nnx.Rngs(0), **options)


def test_options_of_ours_go_with_flaxs_weights():
    """Norms and peepholes are added to the matrices of Flax."""
    options = {"norm": "ba2016", "peephole": True}
    x = inputs(CELLS["lstm"])[0]
    ours = scanrnn.nnx.LSTMCell(3, H, **options, rngs=nnx.Rngs(0))
    theirs = nnx.LSTMCell(3, H, rngs=nnx.Rngs(0))
    state = nnx.to_pure_dict(nnx.state(ours, nnx.Param))
    extra = state.pop("options")
    same(state, nnx.to_pure_dict(nnx.state(theirs, nnx.Param)))
    weights = scanrnn.interop.from_nnx(theirs).layers[0][0] | extra
    cell = cells.lstm(**options)
    carry = cells.LSTMCarry(*(jnp.full([B, H], k) for k in (0.5, -0.5)))
    want = cell.step(weights, carry, x)
    close(ours(carry, x), want)
    close(ours(carry.to_flax(), x), (want[0].to_flax(), want[1]))
    twin = scanrnn.linen.LSTMCell(H, **options)
    variables = twin.init(KEY, carry, x)
    assert variables["params"]["options"].keys() == extra.keys()
    close(
        twin.apply({"params": linen_tree(state) | {"options": extra}}, carry, x), want
    )


def linen_tree(state):
    return {"if" if name == "if_" else name: value for name, value in state.items()}


# Noise.


def test_noise_of_a_step_is_new_and_that_of_a_sequence_stays():
    cell = cells.zoneout(cells.lstm(recurrent_dropout=0.5), h=0.5)
    module = scanrnn.nnx.RNNCell(cell, 3, 32, rngs=nnx.Rngs(0))
    x = inputs(CELLS["lstm"])[0]
    carry = jax.tree.map(lambda a: a + 1.0, module.initialize_carry(x.shape))
    run = lambda rngs: np.asarray(module(carry, x, rngs=rngs)[0].c)  # noqa: E731
    with pytest.raises(ValueError, match="RNNCell: rngs is None"):
        run(None)
    # The memory depends only on the mask of h, the output also on the zoneout.
    rngs = nnx.Rngs(dropout=0, recurrent_dropout=1)
    first, second = run(rngs), run(rngs)
    np.testing.assert_array_equal(first, second)
    rngs.recurrent_dropout()
    assert not np.array_equal(run(rngs), first)
    one = nnx.Rngs(dropout=0)
    assert not np.array_equal(run(one), run(one))
    h = [np.asarray(module(carry, x, rngs=rngs)[1]) for _ in range(2)]
    assert not np.array_equal(*h)
    quiet = nnx.view(module, deterministic=True)
    np.testing.assert_array_equal(quiet(carry, x)[1], quiet(carry, x)[1])
    layer = scanrnn.nnx.RNN(cell, 3, 32, rngs=nnx.Rngs(0))
    xs = inputs(CELLS["lstm"])
    np.testing.assert_array_equal(
        scanrnn.nnx.RNN(module)(xs, rngs=nnx.Rngs(5)), layer(xs, rngs=nnx.Rngs(5))
    )


def test_noise_of_a_linen_step_is_that_of_its_streams():
    cell = scanrnn.linen.LSTMCell(32, recurrent_dropout=0.5, deterministic=False)
    x = inputs(CELLS["lstm"])[0]
    carry = cells.LSTMCarry(jnp.ones([B, 32]), jnp.ones([B, 32]))
    variables = cell.init(KEY, carry, x)
    keys = jax.random.split(KEY, 3)

    def run(**rngs):
        return np.asarray(cell.apply(variables, carry, x, rngs=rngs)[1])

    first = run(dropout=keys[0], recurrent_dropout=keys[2])
    np.testing.assert_array_equal(
        run(dropout=keys[1], recurrent_dropout=keys[2]), first
    )
    assert not np.array_equal(run(dropout=keys[0], recurrent_dropout=keys[1]), first)
    assert not np.array_equal(run(dropout=keys[0]), run(dropout=keys[1]))
    with pytest.raises(ValueError, match='LSTMCell: .*rngs={"dropout"'):
        run()


# Errors.


def raises(kind, *words):
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, words)))


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda n: n.LSTMCell(3), TypeError, ["LSTMCell.__init__() missing"]),
        (lambda n: n.LRUCell(3), TypeError, ["LRUCell.__init__() missing"]),
        (lambda n: n.LSTMCell(3, 4), TypeError, ["rngs must be an nnx.Rngs"]),
        (lambda n: n.LSTMCell(3, 0), ValueError, ["hidden_features", "at least 1"]),
        (lambda n: n.LSTMCell(3, 4, hid=3), TypeError, ["got hid", "peephole", "flax"]),
        (lambda n: n.LRUCell(3, 4, hid=3), TypeError, ["got hid", "RNNCell"]),
        (
            lambda n: n.LSTMCell(3, 4, heads=2),
            ValueError,
            ["recurrent_kernel", "another shape", "RNNCell(scanrnn.cells.lstm("],
        ),
        (
            lambda n: n.LSTMCell(3, 4, forget_bias=1.0),
            ValueError,
            ["forget_bias", "bias_init", "RNNCell("],
        ),
        (lambda n: n.RNNCell("lstm", 3, 4), TypeError, ["RNNCell: cell", "got str"]),
        (lambda n: n.RNNCell(cells.lstm, 3, 4), TypeError, ["got lstm"]),
        (
            lambda n: n.RNNCell(cells.lstm(), 3, 4, carry_dtype=int),
            TypeError,
            ["carry_dtype", "floating"],
        ),
    ],
)
def test_nnx_modules_refuse(make, kind, words):
    room = type("Room", (), {})()
    for name in ("LSTMCell", "LRUCell", "RNNCell"):
        rngs = {} if "rngs must" in words[0] else {"rngs": nnx.Rngs(0)}
        setattr(room, name, functools.partial(getattr(scanrnn.nnx, name), **rngs))
    with raises(kind, *words):
        make(room)


def test_linen_modules_refuse():
    room, x = scanrnn.linen, inputs(CELLS["lstm"])[0]
    zeros = jnp.zeros([B, H], jnp.float32)
    for make in (room.LSTMCell, room.LRUCell, room.LSTM, room.RNNCell):
        with raises(TypeError, f"{make.__name__}: got hid, want options", "features"):
            make(H, hid=3)
    with raises(ValueError, "LSTMCell: with these options recurrent_kernel"):
        room.LSTMCell(H, heads=2).init(KEY, (zeros, zeros), x)
    with raises(TypeError, "RNNCell: cell must be", "got str"):
        room.RNNCell("lstm", H).init(KEY, zeros, x)
    learnt = room.RNNCell(cells.learned_carry(cells.gru()), H)
    with raises(ValueError, "first carry is a parameter", 'method="initialize_carry"'):
        learnt.initialize_carry(KEY, x.shape)
    with raises(TypeError, "LSTMCell: carry", "LSTMCarry", "got list"):
        room.LSTMCell(H).init(KEY, [zeros, zeros], x)
    variables = room.LSTMCell(H).init(KEY, (zeros, zeros), x)
    with raises(ValueError, "lstm: x has shape (2, 2), want (..., 3)"):
        room.LSTMCell(H).apply(variables, (zeros, zeros), x[:, :2])
    with raises(ValueError, "those of features=4", "features=5"):
        room.LSTMCell(5).apply(variables, (zeros, zeros), x)


@pytest.mark.parametrize("name", ["LSTM", "ConvLSTM"])
def test_linen_layers_name_weights_that_do_not_fit(name):
    options = {"kernel_size": 3} if name == "ConvLSTM" else {}
    layer = getattr(scanrnn.linen, name)(H, **options)
    xs = inputs(CELLS["conv_lstm" if options else "lstm"])
    variables = layer.init(KEY, xs)
    with raises(ValueError, f"{name}: params['layers_0'] has 'kernel'", "2 features"):
        layer.apply(variables, xs[..., :2])


@pytest.mark.parametrize("room", [scanrnn.nnx, scanrnn.linen])
@pytest.mark.parametrize("method", ["__call__", "initialize_carry"])
def test_wrong_arguments_are_told_by_a_public_name(room, method):
    """A class may have a method of a private base of ours, or of Flax."""
    kinds = [kind for kind in vars(room).values() if isinstance(kind, type)]
    found = [getattr(kind, method) for kind in kinds if hasattr(kind, method)]
    assert len(found) >= 20
    for run in found:
        with pytest.raises(TypeError) as error:
            run()
        name = re.match(r"(\w+)\.", str(error.value)).group(1)
        assert hasattr(room, name) or hasattr(nn, name), str(error.value)


@pytest.mark.parametrize("name", ["LSTMCell", "LRUCell"])
def test_streams_that_are_missing_are_told_by_the_name_of_the_module(name):
    kind = getattr(scanrnn.nnx, name)
    with raises(ValueError, f"{name}: rngs has no stream 'params'", "['dropout']"):
        kind(3, 4, rngs=nnx.Rngs(dropout=0))
    cell, init = kind(3, 4, rngs=nnx.Rngs(0)), nnx.initializers.normal()
    with raises(ValueError, f"{name}: rngs has no stream 'carry'", "['params']"):
        cell.initialize_carry((2, 3), nnx.Rngs(params=0), init)
    with raises(TypeError, f"{name}: rngs must be None", "nnx.Rngs(0)"):
        cell(jnp.zeros([2, 4]), jnp.ones([2, 3]), rngs=0)
