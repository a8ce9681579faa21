"""Elementwise loops as kernels for a GPU: by Pallas's interpreter, on a CPU."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu import lanes, triton
from scanrnn.executors.gpu.lane_kernel import LaneView
from scanrnn.planner.emit import emit
from tests.cell_table import CELLS, ONE_OF_EACH, draw

NAME = pallas_gpu.NAME
# The cells whose steps have no product left in the loop, and nothing across features.
# A QRNN whose window has two inputs carries one of them, and takes it apart.
ELEMENTWISE = {
    name
    for name, row in CELLS.items()
    if not name.startswith("qrnn-2")
    and row.factory in ("indrnn", "sru", "qrnn", "mingru", "minlstm", "lru", "rglru")
}
QUICK = ("indrnn", "sru", "lru")


def score(step, carry, xs, reverse, implementation):
    outs = scanrnn.scan(step, carry, xs, None, reverse, implementation=implementation)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)), outs


def assert_equal_to_lax_scan(make, args, reverse=False, rtol=1e-9):
    """Values and all gradients of `score(make(params), carry, xs)`."""
    both = []
    for implementation in ("scan", NAME):

        def loss(params, carry, xs, name=implementation):
            return score(make(params), carry, xs, reverse, name)

        f = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
        both.append(jax.jit(f)(*args))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol)


def cell_steps(row):
    return lambda params: functools.partial(row.cell.step, params)


def args_of(row):
    params, xs, carry = draw(row)
    return params, carry, xs


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted(ELEMENTWISE)
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_lanes_equal_lax_scan(name, reverse):
    row = CELLS[name]
    assert_equal_to_lax_scan(cell_steps(row), args_of(row), reverse)


def test_rounding_to_fewer_bits_is_refused_by_name():
    U = jnp.ones((16, 16))

    def step(h, x):
        h = lax.reduce_precision(jnp.tanh(h @ U + x), 8, 7)
        return h, h

    with pytest.raises(ValueError, match="reduce_precision"):
        scanrnn.plan(step, U[:2], jnp.ones((5, 2, 16)), implementation=NAME)


def is_of_lanes(name) -> bool:
    """Whether all loops of a cell are elementwise."""
    row = CELLS[name]
    params, carry, xs = args_of(row)
    step = functools.partial(row.cell.step, params)
    try:
        plan = scanrnn.plan(step, carry, xs, implementation=NAME)
    except ValueError:
        return False
    graphs = (triton.prepared(body).graph for body in emit(plan).values())
    return all(
        isinstance(pallas_gpu.view_of(g, plan.machine), LaneView) for g in graphs
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.slow)
        for name in CELLS
    ],
)
def test_lanes_are_found_where_steps_are_elementwise(name):
    assert is_of_lanes(name) == (name in ELEMENTWISE)


def drawn(*shapes, dtype="float64"):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True)]


def leaky(params):
    """A leaky sum of one axis order, an average of another, a count, and resets."""

    def step(carry, x):
        total, average, count = carry
        value, last = x
        total = total * jnp.tanh(params["decay"]) + value
        average = average + params["gain"] * value.T
        average = jnp.where(last[None, :] > 1, 0.0, average)
        count = count + 1
        out = jnp.where(count > 2, jax.nn.relu(total), total)
        return (total, average, count), (out, average)

    return step


@pytest.mark.parametrize(("T", "B", "F"), [(1, 1, 1), (7, 3, 5), (16, 1, 40)])
@pytest.mark.parametrize("reverse", [False, True])
def test_lanes_of_axes_in_any_order_equal_lax_scan(T, B, F, reverse):
    decay, gain, value, total, average = drawn((F,), (F, 1), (T, B, F), (B, F), (F, B))
    last = jnp.arange(T * B).reshape(T, B) % 3.0
    xs, carry = (value, last), (total, average, jnp.zeros(()))
    args = {"decay": decay, "gain": gain}, carry, xs
    assert_equal_to_lax_scan(leaky, args, reverse)


def test_lanes_of_booleans_equal_lax_scan():
    """A carry that says whether an example is over."""

    def make(rate):
        def step(carry, x):
            sum_, over = carry
            sum_ = jnp.where(over, sum_, sum_ * jnp.exp(-rate) + x)
            over = over | (sum_ > 2.0)
            return (sum_, over), (sum_, over)

        return step

    rate, xs, start = drawn((), (9, 40), (40,))
    args = rate, (start, start > 1), xs
    both = [jax.jit(score, static_argnums=(0, 3, 4))(make(rate), *args[1:], False, n)
            for n in ("scan", NAME)]  # fmt: skip
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


# Elementwise functions by their names in `lax`: of one number, and all others.
UNARY = set(
    "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh erf_inv exp exp2 expm1"
    " floor log log1p log2 logistic neg one_minus_square rsqrt sign sin sinh sqrt"
    " square stop_gradient tan tanh".split()
)
OTHERS = set(
    "add add_any and atan2 clamp convert_element_type copy div eq ge gt integer_pow"
    " is_finite le lt max min mul ne not or pow rem select_n sub xor".split()
)


def of_every_function(params):
    """A step that has all functions of one number that this JAX has."""

    def step(h, x):
        u = jax.nn.sigmoid(h + params * x)
        values = {n: getattr(lax, n)(u) for n in sorted(UNARY) if hasattr(lax, n)}
        values["acosh"] = lax.acosh(1 + u)
        return jax.nn.relu(sum(values.values()) / len(values)), h

    return step


def test_lanes_of_every_function_equal_lax_scan():
    assert UNARY | OTHERS == lanes.ELEMENTWISE
    params, xs, h = drawn((8,), (5, 3, 8), (3, 8))
    assert_equal_to_lax_scan(of_every_function, (params, h, xs))


def gpu_that_is_not_there():
    """A context in which Triton lowers for an H100. Before JAX 0.12, none is needed."""
    if not hasattr(jax.sharding, "AbstractDevice"):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
def test_lanes_of_every_function_are_lowered_by_triton():
    options = scanrnn.Options(machine="h100", implementation=NAME)

    def loss(params, h, xs):
        outs = scanrnn.scan(of_every_function(params), h, xs, plan=options)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(outs))

    args = drawn((64,), (4, 64), (5, 4, 64), dtype="float32")
    with gpu_that_is_not_there():
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*args)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 2


@pytest.mark.parametrize("name", [NAME, None])
def test_kernels_are_exported_as_loops_of_xla(name):
    """JAX exports no kernel of Triton; the planner chooses one for this step."""

    def step(h, x):
        h = jnp.tanh(0.9 * h + x)
        return h, h

    xs = jax.ShapeDtypeStruct((64, 16, 128), "float32")
    h = jax.ShapeDtypeStruct((16, 128), "float32")
    options = scanrnn.Options(machine="h100", implementation=name)
    assert scanrnn.plan(step, h, xs, **vars(options)).executor.name == NAME
    run = jax.jit(functools.partial(scanrnn.scan, step, plan=options))
    exported = jax.export.export(run, platforms=["cuda"])(h, xs)
    assert "triton" not in exported.mlir_module()
    assert exported.serialize()


def test_lanes_in_bfloat16_round_as_lax_scan_does():
    def make(decay):
        def step(h, x):
            h = jnp.tanh(decay * h + x)
            return h, h * x

        return step

    decay, xs, h = drawn((8,), (33, 4, 8), (4, 8), dtype="bfloat16")
    both = [
        jax.jit(lambda xs, h, n=n: scanrnn.scan(make(decay), h, xs, implementation=n))(
            xs, h
        )
        for n in ("scan", NAME)
    ]
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        assert b.dtype == jnp.bfloat16
        np.testing.assert_allclose(*(c.astype(np.float32) for c in (b, a)), atol=2e-2)


def test_lanes_are_one_kernel_for_each_loop():
    row = CELLS["indrnn"]
    params, carry, xs = args_of(row)

    def loss(params):
        step = functools.partial(row.cell.step, params)
        return score(step, carry, xs, False, NAME)[0]

    text = str(jax.make_jaxpr(jax.grad(loss))(params))
    assert text.count("name=first_to_last") == text.count("name=last_to_first") == 1
    assert " scan[" not in text


def view(step, h, xs, **options):
    """The views of the loops of a step."""
    plan = scanrnn.plan(step, h, xs, implementation=NAME, **options)
    graphs = [triton.prepared(body).graph for body in emit(plan).values()]
    return [pallas_gpu.view_of(graph, plan.machine) for graph in graphs]


def test_lanes_of_a_program_are_as_many_as_its_threads():
    for (B, F), threads in (((2, 64), 32), ((64, 1024), 128)):
        views = view(
            lambda h, x: (jnp.tanh(h + x), h), jnp.zeros((B, F)), jnp.zeros((4, B, F))
        )
        assert {v.threads for v in views} == {threads}
        assert {v.grid for v in views} == {(B * F // threads,)}


def test_lanes_say_what_is_in_the_way():
    def reason(step, h, x):
        body = emit(scanrnn.plan(step, h, x, implementation="planned"))["for values"]
        with pytest.raises(lanes.NotElementwiseError) as caught:
            lanes.lanes(triton.prepared(body).graph)
        return str(caught.value)

    h, xs = jnp.zeros((4, 4)), jnp.ones((5, 4, 4))
    ones = jnp.ones((4, 4))
    products = reason(lambda h, x: (jnp.tanh(h @ ones + x), h), h, xs)
    assert products == "dot_general is not elementwise"
    sums = reason(lambda h, x: (jnp.tanh(h - jnp.sum(h, 0) + x), h), h, xs)
    assert sums == "reduce_sum is not elementwise"
    folded = reason(lambda h, x: (jnp.sin(h + x), jnp.sin(h).reshape(4, 2, 2)), h, xs)
    assert folded == "a reshape divides or joins axes"
    turned = reason(lambda h, x: (jnp.tanh(h + h.T + x), h), h, xs)
    assert turned == "two axes of an array meet in an equation"
    two = reason(
        lambda c, x: (jax.tree.map(lambda a, b: jnp.tanh(a + b), c, x), c),
        (jnp.zeros(300), jnp.zeros(200)),
        (jnp.zeros((5, 300)), jnp.zeros((5, 200))),
    )
    assert two == "its arrays have axes that no single array has"


def test_kernels_for_a_gpu_are_refused_with_the_reason():
    h, xs, ones = jnp.zeros((2, 4)), jnp.ones((5, 2, 4)), jnp.ones((4, 4))

    def plan(step, h: Any = h, xs: Any = xs, **options):
        return scanrnn.plan(step, h, xs, implementation=NAME, **options)

    with pytest.raises(ValueError, match="for an NVIDIA GPU, not for tpu v5e"):
        plan(lambda h, x: (jnp.tanh(h + x), h), machine="tpu v5e")
    with pytest.raises(ValueError, match="each product needs at least 16 features"):
        plan(lambda h, x: (jnp.tanh(h @ ones + x), h))
    with pytest.raises(ValueError, match="and sort does not keep the batch apart"):
        plan(lambda h, x: (jnp.tanh(jnp.sort(h) + x), h))
    with pytest.raises(ValueError, match="computes no complex numbers"):
        plan(lambda h, x: (jnp.tanh(h * 1j + x), h), h + 0j, xs + 0j)
    wide, rows, ones = jnp.zeros((2, 48)), jnp.ones((5, 2, 48)), jnp.ones((48, 48))
    with pytest.raises(ValueError, match=r"powers of two, got \[48\]"):
        plan(lambda h, x: (jnp.tanh(h @ ones + x), h), wide, rows)
