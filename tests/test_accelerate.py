"""Loops in other people's code: planned, with the same results and gradients."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import scanrnn
from tests.compare import score
from tests.jaxprs import equations, gemms_in_loops

T, B, D, H = 5, 3, 4, 4
X = jax.random.normal(jax.random.key(0), (B, T, D))
U = 0.5 * jax.random.normal(jax.random.key(1), (H, H))


def linen_lstm():
    model = nn.RNN(nn.OptimizedLSTMCell(H, param_dtype=float))
    return model.apply, model.init(jax.random.key(2), X)


def linen_per_gate_with_lengths():
    model = nn.RNN(nn.LSTMCell(H, param_dtype=float), return_carry=True)
    lengths = jnp.array([5, 2, 3])

    def apply(params, x):
        return model.apply(params, x, seq_lengths=lengths)

    return apply, model.init(jax.random.key(2), X)


def nnx_lstm():
    rngs = nnx.Rngs(0)
    cell = nnx.LSTMCell(D, H, param_dtype=float, rngs=rngs)
    static, params, rest = nnx.split(nnx.RNN(cell, rngs=rngs), nnx.Param, ...)

    def apply(params, x):
        # A copy, because the layer counts its random draws inside the trace.
        return nnx.merge(static, params, jax.tree.map(lambda a: a, rest))(x)

    return apply, params


def step(h, x):
    h = jnp.tanh(x @ U + h @ U)
    return h, h


def by_hand():
    """A loop whose step closes over weights, inside `jit`, inside `checkpoint`."""

    @jax.checkpoint
    @jax.jit
    def apply(u, x):
        def step(h, x):
            h = jnp.tanh(x @ u + h @ u)
            return h, h

        return lax.scan(step, jnp.zeros((B, H)), x.swapaxes(0, 1), reverse=True)

    return apply, U


def over_layers():
    """A scan over layers. Each layer is a scan over time, one of them in a branch."""

    def apply(us, x):
        def layer(x, u):
            def step(h, x):
                h = jnp.tanh(x @ u + h @ u)
                return h, h

            def run():
                return lax.scan(step, jnp.zeros((B, H)), x)[1]

            return lax.cond(u[0, 0] > -10, run, lambda: x), None

        return lax.scan(layer, x.swapaxes(0, 1), us)[0]

    return apply, jnp.stack([U, 0.5 * U])


CODE = [linen_lstm, linen_per_gate_with_lengths, nnx_lstm, by_hand, over_layers]


@pytest.mark.parametrize("code", CODE, ids=lambda c: c.__name__)
def test_accelerated_function_has_the_same_results_and_gradients(code):
    apply, params = code()

    def both(apply):
        def loss(params, x):
            out = apply(params, x)
            return score(out), out

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))

    wanted = both(apply)(params, X)
    got = both(scanrnn.accelerate(apply))(params, X)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("code", CODE[:4], ids=lambda c: c.__name__)
def test_accelerated_loops_hold_one_gemm_each(code):
    apply, params = code()

    def loss(params, x):
        return score(scanrnn.accelerate(apply)(params, x))

    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(params, X).jaxpr
    assert set(gemms_in_loops(jaxpr)) == {1}


def test_accelerated_function_takes_flags_and_names_as_they_are():
    def fn(x, *, how, flip=False):
        assert how == "sum" and isinstance(flip, bool)
        total, _ = lax.scan(lambda c, v: (c + v, None), jnp.zeros(D), x, reverse=flip)
        return {"total": total, "n": 3.0}

    got = scanrnn.accelerate(fn)(X[0], how="sum", flip=True)
    np.testing.assert_allclose(got["total"], X[0].sum(0))
    assert float(got["n"]) == 3.0


def test_accelerate_refuses_what_is_no_function():
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        scanrnn.accelerate(3)
    with pytest.raises(TypeError, match=r"plan must be scanrnn.Options\(...\)"):
        scanrnn.accelerate(step, plan="fast")


def test_accelerated_jit_keeps_the_shardings_that_it_pins():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, PartitionSpec(None, "data"))

    @functools.partial(jax.jit, out_shardings=place)
    def run(xs):
        return lax.scan(lambda h, x: (jnp.tanh(x + h),) * 2, xs[0], xs)[1]

    xs = jnp.ones((5, 3, 4))
    jaxpr = jax.make_jaxpr(scanrnn.accelerate(run))(xs).jaxpr
    pins = [e.params.get("out_shardings", ()) for e in equations(jaxpr)]
    assert any(place in shardings for shardings in pins)
    assert scanrnn.accelerate(run)(xs).sharding == place


def test_accelerate_returns_arrays_of_the_types_that_jit_returns():
    def fn(x):
        return x, jnp.zeros(()), jnp.float32(2), 3, 1.0, True, 1j

    got, wanted = scanrnn.accelerate(fn)(X), jax.jit(fn)(X)
    assert all(isinstance(out, jax.Array) for out in got)
    assert list(map(jax.typeof, got)) == list(map(jax.typeof, wanted))
    assert [out.weak_type for out in got] == [out.weak_type for out in wanted]


def test_accelerate_passes_numbers_of_numpy_as_they_are():
    def fn(x, n, flip):
        return jnp.zeros(n) + (-x if flip else x)

    got = scanrnn.accelerate(fn)(X[0, 0], np.int64(D), np.bool_(True))
    np.testing.assert_array_equal(got, -X[0, 0])


class Noisy(nnx.Module):
    """A model that changes its own state: dropout and batch statistics."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.norm = nnx.BatchNorm(D, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.rnn = nnx.RNN(nnx.LSTMCell(D, H, rngs=rngs))

    def __call__(self, x):
        return self.rnn(self.dropout(self.norm(x)))


WRAPS = {
    "alone": scanrnn.accelerate,
    "inside_jit": lambda fn: nnx.jit(scanrnn.accelerate(fn)),
    "around_jit": lambda fn: scanrnn.accelerate(nnx.jit(fn)),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_accelerated_nnx_module_changes_its_state(wrap):
    x = X.astype("float32")
    ours, theirs = Noisy(), Noisy()
    fast, plain = wrap(lambda model, x: model(x)), nnx.jit(lambda model, x: model(x))
    for _ in range(2):
        np.testing.assert_allclose(fast(ours, x), plain(theirs, x), rtol=1e-4)
    for kind in (nnx.BatchStat, nnx.RngCount):
        found, wanted = (jax.tree.leaves(nnx.state(m, kind)) for m in (ours, theirs))
        assert len(found) == len(wanted) > 0
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4)


def test_accelerate_refuses_a_new_variable_of_a_module():
    def fn(model, x):
        model.seen = nnx.Variable(x)
        return x

    with pytest.raises(ValueError, match="fn makes the variable seen of an NNX module"):
        scanrnn.accelerate(fn)(nnx.Linear(D, H, rngs=nnx.Rngs(0)), X)


def test_accelerate_leaves_branches_for_other_platforms_alone():
    """These branches may not even compile here."""

    def elsewhere(x):
        return pl.pallas_call(lambda i, o: None, jax.typeof(x))(x)

    def fn(x):
        return lax.platform_dependent(x, cpu=lambda x: 2 * x, default=elsewhere)

    np.testing.assert_array_equal(jax.jit(scanrnn.accelerate(fn))(X), 2 * X)
