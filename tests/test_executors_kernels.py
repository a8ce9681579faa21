"""Loops as kernels for a TPU: Pallas's interpreters run them in place of the device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn._tune import tuner
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels import kernel
from tests.cell_table import CELLS, ONE_OF_EACH, draw

NAME = pallas_tpu.NAME
QUICK = ("lstm-norm", "gru", "lstm-heads")


def rows(names):
    """Rows of the table. All but those of `QUICK` are slow."""
    marks = {name: () if name in QUICK else pytest.mark.slow for name in names}
    return [pytest.param(CELLS[n], id=n, marks=mark) for n, mark in marks.items()]


# One row of each family, for tests where only the family matters.
FEW = rows(name for name in CELLS if name in QUICK or name in ONE_OF_EACH)
# One for each way to lay out a carry and to multiply: what a kernel moves and rounds.
KINDS = rows([
    *("lstm", "lstm-norm", "lstm-heads", "gru", "multiplicative_lstm", "sru", "lru"),
    *("qrnn-1-fo", "slstm", "mlstm", "gla", "deltanet", "rwkv7", "mamba2", "conv_lstm"),
])  # fmt: skip


def score(row, implementation, reverse, params, xs, carry):
    step = functools.partial(row.cell.step, params)
    outs = scanrnn.scan(step, carry, xs, None, reverse, implementation=implementation)
    total = [jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)]
    return jnp.asarray(sum(total), jnp.float32), outs


def values_and_gradients(row, implementation, reverse, args):
    f = functools.partial(score, row, implementation, reverse)
    f = jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)
    return jax.tree.leaves(jax.jit(f)(*args))


def drawn(row, dtype):
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), draw(row))


def planned_for_a_tpu(row, dtype="float32"):
    params, xs, carry = drawn(row, dtype)
    step = functools.partial(row.cell.step, params)
    return scanrnn.plan(step, carry, xs, machine="tpu v5e", implementation=NAME)


@pytest.mark.parametrize("row", rows(CELLS))
def test_kernel_equals_lax_scan(row):
    assert_equal_to_lax_scan(row, reverse=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, "conv_lstm"])
def test_kernel_in_reverse_equals_lax_scan(name):
    assert_equal_to_lax_scan(CELLS[name], reverse=True)


def assert_equal_to_lax_scan(row, reverse):
    args = drawn(row, jnp.float32)
    both = (values_and_gradients(row, name, reverse, args) for name in ("scan", NAME))
    for wanted, got in zip(*both, strict=True):
        scale = 1 + float(jnp.max(jnp.abs(wanted)))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("row", KINDS)
def test_kernel_in_bfloat16_is_as_exact_as_lax_scan(row):
    args = drawn(row, jnp.bfloat16)
    exact = values_and_gradients(
        row, "scan", False, jax.tree.map(lambda a: a.astype(jnp.float64), args)
    )
    both = (values_and_gradients(row, name, False, args) for name in ("scan", NAME))
    for wanted, theirs, ours in zip(exact, *both, strict=True):
        errors = (np.linalg.norm(np.ravel(a - wanted)) for a in (theirs, ours))
        theirs, ours = map(float, errors)
        rounding = 2**-7 * float(np.linalg.norm(np.ravel(wanted)))
        assert ours <= 1.5 * theirs + rounding


def numbers(v, *lead):
    """Random numbers for a variable of a graph; with `lead`, for all steps."""
    made = np.random.default_rng(0).normal(size=(*lead, *v.aval.shape))
    return jnp.asarray(made, v.aval.dtype)


def lstm(T, B, H, dtype):
    cell = scanrnn.cells.lstm()
    params = cell.init(jax.random.key(0), H, H)
    params = jax.tree.map(lambda a: a.astype(dtype), params)
    xs = jax.random.normal(jax.random.key(1), (T, B, H), dtype)
    return functools.partial(cell.step, params), cell.initial_carry(params, xs[0]), xs


def test_kernel_of_packed_matrices_equals_lax_scan():
    """The matrices are in bfloat16 and as large as the matrix units of a TPU."""
    keys = jax.random.split(jax.random.key(0), 2)
    U = 0.1 * jax.random.normal(keys[0], (128, 256), jnp.bfloat16)
    xs = jax.random.normal(keys[1], (4, 8, 128), jnp.bfloat16)

    def step(h, x):
        f, z = jnp.split(h @ U, 2, axis=-1)
        h = jax.nn.sigmoid(f) * h + jnp.tanh(z + x)
        return h, h

    def loss(xs, implementation):
        ys = scanrnn.scan(step, 0 * xs[0], xs, implementation=implementation)[1]
        return jnp.sum(jnp.sin(ys.astype(jnp.float32)))

    slope = jax.jit(jax.grad(loss), static_argnums=1)
    both = (slope(xs, name).astype(np.float32) for name in (NAME, "scan"))
    np.testing.assert_allclose(*both, rtol=0.03, atol=0.03)
    text = str(jax.make_jaxpr(jax.grad(loss), static_argnums=1)(xs, NAME))
    assert text.count("name=first_to_last") == text.count("name=last_to_first") == 1
    assert "u32[64,256]" in text


@pytest.mark.parametrize("row", FEW)
def test_kernel_lowers_for_a_tpu(row):
    """This tests JAX's part of lowering. `test_compiled` tests the compiler."""
    if row.factory.startswith("conv"):
        with pytest.raises(ValueError, match="Mosaic .* (conv_general_dilated|rev)"):
            planned_for_a_tpu(row)
        return
    assert planned_for_a_tpu(row).executor.name == NAME


def elman(sorted_=False):
    def step(h, x):
        wx, wh = jnp.ones((3, 4), h.dtype), jnp.ones((4, 4), h.dtype)
        h = jnp.tanh(x @ wx + h @ wh)
        return jnp.sort(h) if sorted_ else h, h

    return step


def of_matrix(w):
    return lambda h, x: (jnp.tanh(h @ w + x @ w), h)


def test_kernel_is_refused_with_the_reason():
    h, xs = jnp.zeros((2, 4), jnp.float32), jnp.ones((5, 2, 3), jnp.float32)

    def plan(step, h: Any = h, xs: Any = xs, **options):
        return scanrnn.plan(step, h, xs, implementation=NAME, **options)

    with pytest.raises(ValueError, match="for a TPU, not for h100"):
        plan(elman(), machine="h100")
    with pytest.raises(ValueError, match="Mosaic does not lower .*: sort"):
        plan(elman(sorted_=True), machine="tpu v5e")
    with pytest.raises(ValueError, match="computes no complex numbers"):
        plan(lambda h, x: (jnp.sin(h) * 1j + x.sum(), h), h + 0j)
    with pytest.raises(ValueError, match="derivative of its loop is left to JAX"):
        plan(elman(), defer=False)
    (T,) = jax.export.symbolic_shape("T")
    with pytest.raises(ValueError, match="T is symbolic"):
        plan(elman(), xs=jax.ShapeDtypeStruct((T, 2, 3), h.dtype))
    H, dtype = 6144, jnp.float32
    wide = [jax.ShapeDtypeStruct(s, dtype) for s in ((2, H), (5, 2, H), (H, H))]
    with pytest.raises(ValueError, match="take 1.. MB, and of fast memory there are"):
        jax.eval_shape(lambda h, xs, w: plan(of_matrix(w), h, xs), *wide)


def test_kernel_is_not_chosen_by_an_estimate():
    step, carry, xs = lstm(30, 2, 32, jnp.float32)
    plan = scanrnn.plan(step, carry, xs, machine="tpu v5e")
    assert plan.executor.name == "planned"
    assert NAME not in [candidate.name for candidate in plan.candidates]


def test_kernel_of_another_platform_is_a_loop_of_xla():
    """A plan for a TPU runs here."""
    step, carry, xs = lstm(3, 2, 4, jnp.float32)
    with jax.enable_x64(False):
        run = functools.partial(scanrnn.scan, step, plan=scanrnn.Options(
            machine="tpu v5e", implementation=NAME
        ))  # fmt: skip
        text = jax.jit(run).lower(carry, xs).as_text()
    assert "callback" not in text and "tpu_custom_call" not in text


@pytest.mark.slow
def test_tuner_tries_a_kernel_and_drops_one_that_is_wrong(monkeypatch, tmp_path):
    """The interpreter takes the place of the device."""
    monkeypatch.setenv("SCANRNN_CACHE", str(tmp_path))
    monkeypatch.setattr(pallas_tpu, "PLATFORM", "cpu")
    monkeypatch.setattr(tuner, "BUDGET", 0.0)
    label = f"implementation={NAME!r}"
    step, carry, xs = lstm(3, 2, 4, jnp.float32)
    plan = scanrnn.plan(step, carry, xs, tune=True)
    assert plan.tuning is not None and label in plan.tuning.seconds
    right = kernel.run

    def wrong(*args, **options):
        final, ys = right(*args, **options)
        return final, [1.5 * y for y in ys]

    lowered = pallas_tpu.lower

    def out_of_memory(array):
        raise MemoryError("out of fast memory")

    def fails(*args):
        """It is traced, but cannot run."""
        final, ys = lowered(*args)
        return [jax.pure_callback(out_of_memory, c, c) for c in final], ys

    words = {
        "times as far from XLA's loops": (kernel, "run", wrong),
        "run on this device, .*RuntimeError": (pallas_tpu, "lower", fails),
    }
    for steps, (said, patch) in enumerate(words.items(), 4):
        monkeypatch.setattr(*patch)
        step, carry, xs = lstm(steps, 2, 4, jnp.float32)
        with pytest.warns(UserWarning, match=said):
            plan = scanrnn.plan(step, carry, xs, tune=True)
        assert plan.tuning is not None and label not in plan.tuning.seconds
