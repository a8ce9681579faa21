"""The language model: carries, resets, lengths, dropout and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from scanrnn.training import (
    Config,
    LanguageModel,
    Padded,
    Precision,
    Window,
    make_evaluate,
    make_loss,
    make_model,
)

KEY = jax.random.key(0)
WIDE = Precision.parse("params=float64,compute=float64,carry=float64,output=float64")


def make(**options):
    options = {"num_layers": 2, "precision": WIDE} | options
    return LanguageModel(7, 6, **options, rngs=nnx.Rngs(0))


def draw(length, batch=3):
    return np.random.default_rng(1).integers(0, 7, (length, batch)).astype(np.int32)


@pytest.mark.slow
def test_windows_with_their_carry_give_the_logits_of_the_whole_text():
    model, ids = make(), draw(9)
    _, whole = model(ids)
    carry, first = model(ids[:4])
    _, second = model(ids[4:], carry)
    np.testing.assert_allclose(jnp.concatenate([first, second]), whole, rtol=1e-12)


@pytest.mark.slow
def test_reset_of_a_stream_forgets_what_it_read_before():
    model, ids = make(), draw(8)
    resets = np.zeros([8, 3], bool)
    resets[5, 1] = True
    _, logits = model(ids, resets=resets)
    _, plain = model(ids)
    _, fresh = model(ids[5:])
    np.testing.assert_allclose(logits[:, [0, 2]], plain[:, [0, 2]], rtol=1e-12)
    np.testing.assert_allclose(logits[5:, 1], fresh[:, 1], rtol=1e-12)
    assert float(jnp.max(jnp.abs(logits[5:, 1] - plain[5:, 1]))) > 1e-3


@pytest.mark.slow
def test_loss_of_sentences_is_the_mean_over_their_tokens():
    model = make()
    loss_fn, params = make_loss(model), nnx.state(model)
    ids, lengths = draw(6), np.array([6, 3, 0], np.int32)
    loss, (carry, _) = loss_fn(params, (), Padded(ids, lengths), KEY)
    total, count = 0.0, 0
    for row, length in enumerate(lengths):
        if length > 1:
            one = ids[:length, row : row + 1]
            mean, _ = loss_fn(params, None, Window(one[:-1], one[1:]), KEY)
            total, count = total + mean * (length - 1), count + length - 1
    np.testing.assert_allclose(loss, total / count, rtol=1e-12)
    assert carry == ()


def test_loss_summed_over_time_is_the_mean_times_the_steps():
    model, ids = make(), draw(6)
    window, params = Window(ids[:-1], ids[1:]), nnx.state(model)
    mean, _ = make_loss(model)(params, None, window, KEY)
    total, _ = make_loss(model, "sum")(params, None, window, KEY)
    np.testing.assert_allclose(total, 5 * mean, rtol=1e-12)


@pytest.mark.usefixtures("in_32_bit")
def test_evaluation_of_many_batches_loses_no_digits():
    model = make_model(Config(features=8, layers=1), symbols=5)
    batch = Padded(np.arange(8, dtype=np.int32).reshape(4, 2) % 5, np.array([4, 3]))
    params = nnx.state(model)
    (one, many, none) = (
        make_evaluate(model, lambda n=n: [batch] * n, ()) for n in (1, 3000, 0)
    )
    assert many(params) == pytest.approx(one(params), rel=1e-12)
    with pytest.raises(ValueError, match="^batches: returned none, want .*new iterat"):
        none(params)


def test_dropout_is_drawn_by_the_key_and_off_without_one():
    model, ids = make(dropout=0.5), draw(5)
    plain, again = model(ids)[1], model(ids)[1]
    np.testing.assert_array_equal(plain, again)
    first, same = (model(ids, key=KEY)[1] for _ in range(2))
    np.testing.assert_array_equal(first, same)
    other = model(ids, key=jax.random.key(1))[1]
    assert float(jnp.max(jnp.abs(first - other))) > 1e-3


@pytest.mark.usefixtures("in_32_bit")
def test_layers_have_the_types_of_their_policy():
    policy = "bfloat16,carry=bfloat16,readout.compute=float32,readout.output=float32"
    model = make(precision=Precision.parse(policy))
    carry, logits = jax.eval_shape(lambda model, ids: model(ids), model, draw(4))
    assert {leaf.dtype for leaf in jax.tree.leaves(carry)} == {jnp.dtype("bfloat16")}
    assert model.embed.dtype == jnp.bfloat16 and model.readout.dtype == jnp.float32
    assert logits.dtype == jnp.float32
    params = jax.tree.leaves(nnx.state(model))
    assert {leaf.dtype for leaf in params} == {jnp.dtype("float32")}


def test_recipe_of_ptb_draws_all_weights_from_one_distribution():
    model = make(norm=None, uniform=0.04)
    for leaf in jax.tree.leaves(nnx.state(model)):
        if leaf.ndim == 2:
            assert 0.03 < float(jnp.max(jnp.abs(leaf))) <= 0.04
        else:
            np.testing.assert_array_equal(leaf, 0.0)  # of forget gates too
