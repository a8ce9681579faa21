"""The dtypes in which cells compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from tests import oracles
from tests.cell_table import CELLS, ONE_ROW_EACH, draw
from tests.jaxprs import gemms

one_of_each = pytest.mark.parametrize("row", ONE_ROW_EACH)
every_half = pytest.mark.parametrize("half", ["bfloat16", "float16"])


def in_dtype(dtype, tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


@every_half
@one_of_each
def test_half_precision_is_for_gemm_operands_alone(row, half):
    params, xs, carry = in_dtype(jnp.float32, draw(row))
    jaxpr = jax.make_jaxpr(row.make(dtype=half).step)(params, carry, xs[0])
    for gemm in gemms(jaxpr.jaxpr):
        assert {var.aval.dtype for var in gemm.invars} == {jnp.dtype(half)}
        assert gemm.outvars[0].aval.dtype == jnp.float32
    assert {aval.dtype for aval in jaxpr.out_avals} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)],
)
@pytest.mark.parametrize("name", ["elman-norm", "lstm-norm", "gru-norm"])
def test_lower_precision_is_close_to_the_oracle(name, dtype, tolerance):
    row = CELLS[name]
    params, xs, carry = draw(row)
    step = functools.partial(row.make(dtype=dtype).step, in_dtype("float32", params))
    _, ys = scanrnn.scan(step, *in_dtype("float32", (carry, xs)))
    _, wanted = oracles.run(row.oracle, params, xs, carry)
    error = np.abs(ys - wanted).max()
    assert 0 < error < tolerance


@every_half
@one_of_each
def test_carry_and_output_keep_the_dtype_of_the_carry(row, half):
    params, xs, carry = draw(row)
    given = in_dtype(half, carry)
    arguments = in_dtype("float32", params), given, jnp.float32(xs[0])
    new, y = jax.eval_shape(row.cell.step, *arguments)
    assert {leaf.dtype for leaf in (*new, y)} == {jnp.dtype(half)}


@one_of_each
def test_half_params_compute_in_float32(row):
    params, xs, carry = draw(row)
    half, wide = in_dtype("bfloat16", params), in_dtype("float32", (carry, xs[0]))
    step = jax.jit(row.cell.step)
    new, y = step(half, *wide)
    wanted, _ = step(in_dtype("float32", half), *wide)
    assert {leaf.dtype for leaf in (*new, y)} == {jnp.dtype("float32")}
    jax.tree.map(np.testing.assert_array_equal, new, wanted)


@one_of_each
def test_a_step_never_promotes_by_accident(row):
    params, xs, carry = draw(row)
    arguments = in_dtype("bfloat16", params), carry, jnp.float32(xs[0])
    wanted = jax.make_jaxpr(row.cell.step)(*arguments)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        got = jax.make_jaxpr(row.cell.step)(*arguments)
    assert str(got) == str(wanted)


@pytest.mark.parametrize("name", ["elman-norm", "lstm-norm", "gru-norm", "lstm-tf"])
def test_layer_norm_of_a_large_input_stays_finite(name):
    row = CELLS[name]
    params, xs, carry = in_dtype("float32", draw(row))
    step = jax.jit(row.make(dtype="float16").step)
    new, y = step(params, carry, 1e3 * xs[0])
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in (*new, y))
