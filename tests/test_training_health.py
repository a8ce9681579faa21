"""Probes on small networks with known values, and the demonstration of clipping."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from matplotlib.figure import Figure

import scanrnn
from scanrnn import cells
from scanrnn.training import (
    Config,
    Health,
    LanguageModel,
    Window,
    draw_health,
    init_state,
    make_train_step,
    probe,
    probe_model,
    spectral_radii,
    train,
)

KEY = jax.random.key(0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_probe_measures_gradients_that_vanish_and_explode(factor):
    def step(carry, x):
        carry = factor * carry + x
        return carry, carry

    xs = jnp.zeros([9, 2, 3])
    (health,) = probe([step], [jnp.zeros([2, 3])], xs, lambda ys: jnp.sum(ys[-1]))
    want = np.sqrt(6) * factor ** np.arange(9, 0, -1)
    np.testing.assert_allclose(health.grad_norms, want, rtol=1e-12)
    assert health.names == () and health.radii.size == 0


@pytest.mark.slow
def test_probe_gives_the_gradient_by_the_carries_of_all_layers():
    cell = cells.lstm(norm="ba2016")
    params = [cell.init(key, 4, 4, jnp.float64) for key in jax.random.split(KEY)]
    xs = jax.random.normal(KEY, [5, 3, 4])
    steps = [functools.partial(cell.step, p) for p in params]
    carries = [cell.initial_carry(p, xs[0]) for p in params]

    def loss(ys):
        return jnp.sum(jnp.sin(ys))

    def from_step(t, layer, carry):
        """The loss with this carry of a layer before step t."""
        ys = xs
        for number, step in enumerate(steps):
            now, outs = carries[number], []
            for index, x in enumerate(ys):
                if (index, number) == (t, layer):
                    now = carry
                now, y = step(now, x)
                outs.append(y)
            ys = jnp.stack(outs)
        return loss(ys)

    found = probe(steps, carries, xs, loss, params)
    for layer, t in ((0, 0), (0, 3), (1, 2)):
        now, ys = carries[layer], xs
        for below in range(layer):
            _, ys = jax.lax.scan(steps[below], carries[below], ys)
        for x in ys[:t]:
            now, _ = steps[layer](now, x)
        grad = jax.grad(functools.partial(from_step, t, layer))(now)
        want = optax.tree.norm(grad)
        np.testing.assert_allclose(found[layer].grad_norms[t], want, rtol=1e-10)
    np.testing.assert_allclose(found[1].radii, spectral_radii(params[1]))
    assert found[0].radii.shape == (4,)


def test_probe_counts_saturated_values_of_every_function():
    def step(carry, x):
        gates = jax.nn.sigmoid(x), jax.jit(jnp.tanh)(x), jax.nn.sigmoid(-x)
        return carry + sum(gates), x

    xs = jnp.array([[-9.0, -9.0, 0.0, 9.0], [0.0, 0.0, 0.0, 9.0]])
    (health,) = probe([step], [jnp.zeros(4)], xs, jnp.sum)
    assert health.names == ("logistic 1", "logistic 2", "tanh 1")
    np.testing.assert_array_equal(health.low, [[0.5, 0.25, 0.5], [0, 0.25, 0]])
    np.testing.assert_array_equal(health.high, [[0.25, 0.5, 0.25], [0.25, 0, 0.25]])
    np.testing.assert_array_equal(health.saturated, [0.5, 0.5, 0.5])


@jax.custom_vjp
def stopped(h):
    return jnp.tanh(h)


stopped.defvjp(lambda h: (jnp.tanh(h), None), lambda _, g: (0 * g,))


@jax.custom_jvp
def tripled(h):
    return jnp.tanh(h)


tripled.defjvp(lambda primals, tangents: (tripled(*primals), 3 * tangents[0]))


@pytest.mark.parametrize(
    ("activation", "wanted", "names"),
    [
        (stopped, [0, 0, 0], ("tanh 1",)),
        (tripled, [39, 12, 3], ("tanh 1",)),
        (jax.checkpoint(jax.jit(tripled)), [39, 12, 3], ("tanh 1",)),
        (jax.nn.relu, [0, 0, 0], ()),  # the rule says 0 at 0
    ],
)
def test_probe_follows_derivative_rules(activation, wanted, names):
    def step(carry, x):
        carry = activation(carry) + x
        return carry, carry

    (health,) = probe([step], [jnp.zeros(1)], jnp.zeros((3, 1)), jnp.sum)
    np.testing.assert_allclose(health.grad_norms, wanted)
    assert health.names == names and health.low.shape == (3, len(names))


def test_probe_looks_into_a_cell_of_flax():
    cell = nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0))
    carry = cell.initialize_carry((2, 3), nnx.Rngs(1))
    xs = jnp.ones([6, 2, 3], jnp.float32)
    (health,) = probe([cell], [carry], xs, jnp.sum)
    assert health.names[:3] == ("logistic 1", "logistic 2", "logistic 3")
    assert (health.grad_norms > 0).all()


def test_kernels_of_cells_with_a_projection_have_no_spectral_radii():
    params = cells.lstm(projection=4).init(KEY, 3, 8)
    assert params["recurrent_kernel"].shape == (4, 32)
    assert not len(spectral_radii({"layers": [params]}))


@pytest.mark.parametrize("heads", [1, 2])
def test_spectral_radii_are_those_of_every_gate_and_head(heads):
    params = cells.gru(heads=heads).init(KEY, 3, 8)
    kernel = np.asarray(params["recurrent_kernel"]).reshape(heads, 8 // heads, 3, -1)
    want = [
        np.abs(np.linalg.eigvals(kernel[n, :, g])).max()
        for n in range(heads)
        for g in range(3)
    ]
    np.testing.assert_allclose(spectral_radii(params), want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("in_32_bit")
@pytest.mark.parametrize("options", [{}, {"cell": "gru", "norm": None}])
def test_probe_of_a_model_is_drawn(tmp_path, monkeypatch, options):
    model = LanguageModel(9, 6, num_layers=2, **options, rngs=nnx.Rngs(0))
    ids = np.arange(10, dtype=np.int32).reshape(5, 2) % 9
    layers = probe_model(model, Window(ids, ids))
    assert len(layers) == 2 and all((h.grad_norms > 0).all() for h in layers)
    gates = ("r", "z", "n") if options else ("i", "f", "g", "o")
    assert all(h.gates == gates and h.radii.shape == (len(gates),) for h in layers)
    figures = drawn(monkeypatch)
    assert draw_health(tmp_path / "health.png", layers)
    assert (tmp_path / "health.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    _, saturation, radii = figures[0].axes
    assert tuple(label.get_text() for label in radii.get_xticklabels()) == gates
    assert len(saturation.get_xticklabels()) == len(layers[0].names)


def drawn(monkeypatch):
    """Collect the figures that are saved from now on."""
    figures, save = [], Figure.savefig

    def note(self, *arguments, **options):
        figures.append(self)
        return save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", note)
    return figures


def test_picture_shows_bars_of_all_sizes_and_gates_without_names(tmp_path, monkeypatch):
    full, norms = np.ones([5, 1]), np.ones(5)
    layers = [
        Health(("tanh 1",), full, 0 * full, norms, np.array([0.5, 2.0])),
        Health(("logistic 1",), 0 * full, full / 2, norms, np.array([])),
    ]
    figures = drawn(monkeypatch)
    draw_health(tmp_path / "health.png", layers)
    _, saturation, radii = figures[0].axes
    tops = [bar.get_y() + bar.get_height() for bar in saturation.patches]
    assert max(tops) == 1 < saturation.get_ylim()[1]
    assert [label.get_text() for label in radii.get_xticklabels()] == ["0", "1"]


def test_gates_of_heads_and_of_further_matrices_have_their_names():
    cell = cells.multiplicative_lstm(heads=1)
    params = cell.init(KEY, 3, 4)
    xs, carry = jnp.ones([2, 1, 3]), cell.initial_carry(params, jnp.ones([1, 3]))
    step = functools.partial(cell.step, params)
    (health,) = probe([step], [carry], xs, jnp.sum, [params], [cell.gates])
    assert health.gates == ("i", "f", "g", "o", "m")
    assert health.radii.shape == (5,)


@pytest.mark.slow
@pytest.mark.usefixtures("in_32_bit")
def test_run_probes_its_health(tmp_path, monkeypatch):
    monkeypatch.setattr("scanrnn.training._train._finish", lambda run, console: None)
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 20)
    config = Config(
        text=str(text),
        out=str(tmp_path / "run"),
        **{"features": 8, "layers": 1, "batch": 2, "window": 6, "steps": 3},
        health=True,
    )
    train(config)
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert '"saturated_1"' in log and '"grad_first_1"' in log and '"radius_1"' in log
    assert (tmp_path / "run" / "health.png").is_file()


def explode(clip, steps=25):
    """The demonstration: RNN(64, 128), with recurrent weights times three."""
    rnn = scanrnn.nnx.Elman(64, 128, scheme="torch", rngs=nnx.Rngs(42))
    kernel = rnn.layers[0]["recurrent_kernel"]
    kernel[...] = 3 * kernel[...]
    graphdef, params = nnx.split(rnn)
    keys = jax.random.split(jax.random.key(42))
    x = jax.random.normal(keys[0], [16, 50, 64])
    y = jax.random.normal(keys[1], [16, 50, 128])

    def loss_fn(params, carry, batch, key):
        ys = nnx.merge(graphdef, params)(x)
        return jnp.mean((ys - y) ** 2), (carry, ys)

    optimizer = optax.sgd(0.01)
    state = init_state(params, optimizer, key=KEY)
    step = make_train_step(loss_fn, optimizer, clip=clip)
    rows = []
    for _ in range(steps):
        before = jax.tree.map(jnp.copy, state.params)
        state, metrics = step(state, ())
        moved = jax.tree.map(lambda a, b: a - b, before, state.params)
        rows.append((float(metrics.grad_norm), float(optax.tree.norm(moved)) / 0.01))
    return np.array(rows), spectral_radii(nnx.to_pure_dict(state.params))


@pytest.mark.slow
@pytest.mark.usefixtures("in_32_bit")
def test_clipping_holds_gradients_that_explode():
    clipped, radii = explode(clip=1.0)
    norms, applied = clipped.T
    assert radii.max() > 1.5
    assert norms.min() > 1 and norms[0] > 2  # before clipping
    np.testing.assert_allclose(applied, 1.0, rtol=1e-3)  # after
    plain, _ = explode(clip=None)
    np.testing.assert_allclose(plain[:, 0], plain[:, 1], rtol=1e-2)
    assert plain[0, 0] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.usefixtures("in_32_bit")
@pytest.mark.parametrize("factor, explodes", [(1, False), (3, True)])
def test_probe_shows_that_recurrent_weights_times_three_explode(factor, explodes):
    cell = cells.elman()
    params = cell.init(jax.random.key(42), 64, 128, scheme="torch")
    params["recurrent_kernel"] *= factor
    xs = jax.random.normal(KEY, [50, 16, 64])
    step, carry = (
        functools.partial(cell.step, params),
        cell.initial_carry(params, xs[0]),
    )

    def loss(ys):
        return jnp.mean(jnp.square(ys[-1]))

    (health,) = probe([step], [carry], xs, loss, [params])
    assert (health.radii.max() > 1) == explodes
    growth = health.grad_norms[0] / health.grad_norms[-1]
    assert growth > 10 if explodes else growth < 1e-6
    assert (health.saturated[0] > 0.1) == explodes
