"""Random numbers are data: how cells use them, and how they are drawn."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn import cells
from scanrnn.cells._wrapper import Wrapper
from tests import oracles
from tests.cell_table import CELLS, B, H, T, draw
from tests.jaxprs import gemms_in_loops

FAMILIES = ("elman", "lstm", "gru", "gru-cho2014")
close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)


def run(cell, params, xs, carry, seed=7):
    """The results of our cell, and the noise that it drew."""
    key = jax.random.key(seed)
    step, inputs = cell.prepare(params, xs, key)
    return scanrnn.scan(step, carry, inputs), cell.noise(key, params, xs)


def by_example(oracle, params, xs, carry, **masks):
    """`oracles.run` for each example, with the masks of this example as params."""
    lasts, outputs = [], []
    for b in range(xs.shape[1]):
        one = {name: mask[b] for name, mask in masks.items()}
        first = tuple(field[b : b + 1] for field in carry)
        last, ys = oracles.run(oracle, {**params, **one}, xs[:, b : b + 1], first)
        lasts.append(last)
        outputs.append(ys)
    last = [np.concatenate(field) for field in zip(*lasts, strict=True)]
    return last, np.concatenate(outputs, axis=1)


def equal(got, want):
    (last, ys), (wanted_last, wanted) = got, want
    close(ys, wanted)
    for a, b in zip(last, wanted_last, strict=True):
        close(a, b)


@pytest.mark.parametrize("per_gate", [False, True], ids=["shared", "per_gate"])
@pytest.mark.parametrize("name", [*FAMILIES, "lstm-heads", "lstm-projection"])
def test_recurrent_dropout_equals_the_oracle(name, per_gate):
    row = CELLS[name]
    params, xs, carry = draw(row)
    cell = row.make(recurrent_dropout=0.5, mask_per_gate=per_gate)
    got, noise = run(cell, params, xs, carry)
    mask = np.asarray(noise.fixed["recurrent"])
    features = carry.h.shape[-1]
    gates = (len(cell.gates),) if per_gate else ()
    assert mask.shape == (B, *gates, features)
    assert set(np.unique(mask)) == {0.0, 2.0}
    want = by_example(row.oracle, params, xs, carry, recurrent_mask=mask)
    equal(got, want)


@pytest.mark.parametrize("name", ["lstm", "gru", "lstm-norm"])
def test_zoneout_equals_the_oracle(name):
    row = CELLS[name]
    params, xs, carry = draw(row)
    cell = cells.zoneout(row.cell, h=0.5)
    got, noise = run(cell, params, xs, carry)
    masks = np.asarray(noise.steps["zoneout_h"])
    assert masks.shape == (T, B, H) and 0 < masks.mean() < 1
    outputs = []
    for x, mask in zip(xs, masks, strict=True):
        new, _ = oracles.run(row.oracle, params, x[None], carry)
        h = np.where(mask, carry.h, new[0])
        carry = type(carry)(h, *new[1:])
        outputs.append(h)
    equal(got, (carry, np.stack(outputs)))


@pytest.mark.parametrize("same_mask", [True, False])
def test_dropout_equals_the_oracle(same_mask):
    row = CELLS["lstm"]
    params, xs, carry = draw(row)
    cell = cells.dropout(row.cell, input=0.5, output=0.25, same_mask=same_mask)
    got, noise = run(cell, params, xs, carry)
    masks = noise.fixed if same_mask else noise.steps
    mask_x, mask_y = masks["dropout_input"], masks["dropout_output"]
    assert mask_x.shape[-3:-2] == (() if same_mask else (T,))
    last, ys = oracles.run(row.oracle, params, np.asarray(xs * mask_x), carry)
    equal(got, (last, ys * mask_y))


def test_weight_drop_equals_the_oracle():
    row = CELLS["gru"]
    params, xs, carry = draw(row)
    cell = cells.weight_drop(row.cell, 0.5)
    got, noise = run(cell, params, xs, carry)
    mask = np.asarray(noise.fixed["weight_drop_recurrent_kernel"])
    dropped = {**params, "recurrent_kernel": params["recurrent_kernel"] * mask}
    equal(got, oracles.run(row.oracle, dropped, xs, carry))


@pytest.mark.parametrize("name", ["elman", "lstm", "gru", "gru-cho2014"])
def test_recurrent_dropout_equals_keras(name):
    keras = pytest.importorskip("keras")
    from tests.libraries.keras import LAYERS

    row = CELLS[name]
    params, xs, carry = draw(row)
    # Keras has a mask for each gate, and the GRU's in the order z, r, h.
    order = {"elman": (), "lstm": (0, 1, 2, 3)}.get(name, (1, 0, 2))
    cell = row.make(recurrent_dropout=0.5, mask_per_gate=bool(order))
    got, noise = run(cell, params, xs, carry)
    mask = noise.fixed["recurrent"]
    mask = [mask[:, gate] for gate in order] or mask

    class Masked:
        """The layer of the table in training mode, with our mask."""

        def __init__(self, make, *args, **options):
            self.layer = make(*args, recurrent_dropout=0.5, **options)
            self.layer.cell.get_recurrent_dropout_mask = lambda h: mask

        def __getattr__(self, name):
            return getattr(self.layer, name)

        def stateless_call(self, *args, **options):
            return self.layer.stateless_call(*args, training=True, **options)

    with pytest.MonkeyPatch.context() as patch:
        for kind in ("LSTM", "GRU", "SimpleRNN"):
            make = functools.partial(Masked, getattr(keras.layers, kind))
            patch.setattr(keras.layers, kind, make)
        want = LAYERS[name](params, xs, carry)
    equal(got, want)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CELLS["lstm"].make(recurrent_dropout=0.5),
        lambda: CELLS["lstm"].make(recurrent_dropout=0.5, mask_per_gate=True),
        lambda: cells.zoneout(CELLS["lstm"].cell, h=0.1, c=0.5),
        lambda: cells.dropout(CELLS["lstm"].cell, input=0.5, output=0.5),
        lambda: cells.weight_drop(CELLS["lstm"].cell, 0.5),
    ],
    ids=["recurrent", "per_gate", "zoneout", "dropout", "weight_drop"],
)
def test_noise_adds_no_gemm_to_the_loops(make):
    params, xs, carry = draw(CELLS["lstm"])

    def score(params, xs, carry):
        (last, ys), _ = run(make(), params, xs, carry)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in (*last, ys))

    jaxpr = jax.make_jaxpr(jax.grad(score, argnums=(0, 1, 2)))(params, xs, carry)
    assert gemms_in_loops(jaxpr.jaxpr) == [1, 1]


def test_wrappers_compose_and_a_key_makes_all_their_noise():
    cell = CELLS["lstm"].make(recurrent_dropout=0.5)
    cell = cells.zoneout(cells.weight_drop(cell, 0.5), h=0.1, c=0.5)
    cell = cells.learned_carry(cells.highway(cells.dropout(cell, input=0.5)))
    params = cell.init(jax.random.key(0), H, H)
    xs = jnp.ones([T, B, H])
    noise = cell.noise(jax.random.key(1), params, xs)
    assert set(noise.fixed) == {
        "recurrent",
        "weight_drop_recurrent_kernel",
        "dropout_input",
    }
    assert set(noise.steps) == {"zoneout_h", "zoneout_c"}
    carry = cell.initial_carry(params, xs[0])
    (_, ys), _ = run(cell, params, xs, carry)
    (_, same), _ = run(cell, params, xs, carry)
    (_, others), _ = run(cell, params, xs, carry, seed=8)
    np.testing.assert_array_equal(ys, same)
    assert not np.allclose(ys, others)


def test_a_second_wrapper_of_a_kind_is_refused():
    cell = cells.zoneout(cells.gru(), h=0.1)
    with pytest.raises(ValueError, match="zoneout: the cell has a zoneout already"):
        cells.zoneout(cells.residual(cell), h=0.2)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_that_is_no_probability_below_one_is_refused(rate):
    for make in (
        lambda: cells.lstm(recurrent_dropout=rate),
        lambda: cells.zoneout(cells.lstm(), c=rate),
        lambda: cells.dropout(cells.lstm(), input=rate),
        lambda: cells.weight_drop(cells.lstm(), rate),
    ):
        with pytest.raises(ValueError, match=r"want a probability in \[0, 1\)"):
            make()


def test_a_field_or_a_parameter_that_is_not_there_is_refused():
    params, xs, carry = draw(CELLS["gru"])
    cell = cells.zoneout(cells.gru(), c=0.1)
    for call in (
        lambda: cell.step(params, carry, xs[0]),
        lambda: cell.init(jax.random.key(0), 3, 4),
    ):
        with pytest.raises(ValueError, match=r"GRUCarry has no field 'c', .*\('h',\)"):
            call()
    with pytest.raises(ValueError, match="no parameter 'projection'"):
        cell = cells.weight_drop(cells.gru(), 0.1, names="projection")
        cell.step(params, carry, xs[0])


def test_without_a_key_nothing_is_random():
    row = CELLS["lstm"]
    params, xs, carry = draw(row)
    cell = cells.dropout(row.make(recurrent_dropout=0.5), input=0.5, output=0.5)
    step, inputs = cell.prepare(params, xs)
    want = scanrnn.scan(functools.partial(row.cell.step, params), carry, xs)
    jax.tree.map(np.testing.assert_array_equal, scanrnn.scan(step, carry, inputs), want)


# Cells of users in our wrappers.


class Level(NamedTuple):
    h: jax.Array


@dataclasses.dataclass(frozen=True)
class Own(cells.Cell):
    """A user's cell without noise: its step takes three arguments."""

    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        shape = in_features, hidden_features
        return {"kernel": jax.random.normal(key, shape, dtype)}

    def initial_carry(self, params, x, dtype=None):
        return Level(jnp.zeros_like(x @ params["kernel"], dtype=dtype))

    def step(self, params, carry, x):
        h = jnp.tanh(carry.h + x @ params["kernel"])
        return Level(h), h


WRAPPERS = {
    "dropout": functools.partial(cells.dropout, input=0.5, output=0.5),
    "zoneout": functools.partial(cells.zoneout, h=0.5),
    "weight_drop": functools.partial(cells.weight_drop, rate=0.5, names="kernel"),
    "highway": cells.highway,
    "residual": cells.residual,
    "learned_carry": cells.learned_carry,
}


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def nested(cell, *names):
    """The cell in wrappers, from the innermost to the outermost."""
    return functools.reduce(lambda cell, name: WRAPPERS[name](cell), names, cell)


def test_every_wrapper_is_in_the_table():
    assert set(WRAPPERS) == {kind.name for kind in Wrapper.__subclasses__()}


@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", [None, *WRAPPERS])
def test_wrapped_cell_of_a_user_trains(outer, inner):
    if inner == outer:
        return  # most wrappers are refused a second time
    cell = nested(Own(), *([inner] if inner else []), outer)
    params, xs = cell.init(jax.random.key(0), H, H), normal(T, B, H)

    def train(params, xs):
        step, inputs = cell.prepare(params, xs, jax.random.key(1))
        return jax.lax.scan(step, cell.initial_carry(params, xs[0]), inputs)

    carry, ys = jax.eval_shape(train, params, xs)
    assert carry.h.shape == (B, H) and ys.shape == (T, B, H)


@pytest.mark.parametrize(
    "names",
    [["dropout"], ["zoneout"], ["weight_drop"], ["zoneout", "dropout"], [*WRAPPERS]],
    ids="-".join,
)
def test_layers_train_a_wrapped_cell_of_a_user(names):
    cell, xs = nested(Own(), *names), normal(B, T, H)
    rnn = scanrnn.nnx.RNN(cell, H, H, num_layers=2, rngs=nnx.Rngs(0))
    twin = scanrnn.linen.RNN(cell, features=H, num_layers=2)
    variables = twin.init(jax.random.key(0), xs)
    train = functools.partial(twin.apply, variables, xs, deterministic=False)
    for quiet, noisy, again in (
        (
            rnn(xs, deterministic=True),
            rnn(xs, rngs=nnx.Rngs(1)),
            rnn(xs, rngs=nnx.Rngs(1)),
        ),
        (
            twin.apply(variables, xs, deterministic=True),
            train(rngs={"dropout": jax.random.key(1)}),
            train(rngs={"dropout": jax.random.key(1)}),
        ),
    ):
        np.testing.assert_array_equal(noisy, again)
        assert not np.allclose(noisy, quiet)


def test_masks_around_a_users_cell_equal_a_loop_by_hand():
    cell = nested(Own(), "zoneout", "weight_drop", "dropout")
    params = cell.init(jax.random.key(0), H, H, jnp.float64)
    xs = normal(T, B, H, dtype=jnp.float64)
    carry = cell.initial_carry(params, xs[0])
    got, noise = run(cell, params, xs, carry)
    masks = noise.fixed
    kernel = params["kernel"] * masks["weight_drop_kernel"]

    def step(h, inputs):
        x, kept = inputs
        new = jnp.tanh(h + (x * masks["dropout_input"]) @ kernel)
        return jnp.where(kept, h, new), new * masks["dropout_output"]

    last, ys = jax.lax.scan(step, carry.h, (xs, noise.steps["zoneout_h"]))
    equal(got, ([last], ys))


def test_wrapped_cell_sees_the_noise_that_it_drew_and_no_other():
    seen = []

    class Noisy(Own):
        def noise(self, key, params, xs):
            return cells.Noise({"dropout_own": jnp.ones(H)}, {})

        def step(self, params, carry, x, noise=None):
            seen.append(noise and set(noise))
            return super().step(params, carry, x)

    cell = nested(Noisy(), *WRAPPERS)
    params, xs = cell.init(jax.random.key(0), H, H), normal(T, B, H)
    step, inputs = cell.prepare(params, xs, jax.random.key(1))
    seen.clear()  # to draw masks, a wrapper asks for shapes
    step(cell.initial_carry(params, xs[0]), jax.tree.map(lambda a: a[0], inputs))
    assert seen == [{"dropout_own"}]


class Loose(cells.Cell):
    """Its noise is a dict."""

    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        return {"kernel": jnp.ones((in_features, hidden_features), dtype)}

    def initial_carry(self, params, x, dtype=None):
        return jnp.zeros((*x.shape[:-1], params["kernel"].shape[1]), dtype)

    def noise(self, key, params, xs):
        return {"mask": jnp.ones(len(xs))}

    def step(self, params, carry, x, noise=None):
        return carry, carry


@pytest.mark.parametrize("cell", [Loose(), cells.residual(Loose())])
def test_noise_that_is_a_dict_is_refused_with_the_way_out(cell):
    params, xs = cell.init(jax.random.key(0), 3, 3), jnp.ones((2, 4, 3))
    with pytest.raises(TypeError, match="Loose.noise: got a dict, want .*Noise.fixed"):
        cell.prepare(params, xs, jax.random.key(0))
