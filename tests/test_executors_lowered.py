"""Steps that Triton lowers for an H100, and whose module is valid.

Pallas's interpreter has more operations than Triton, and XLA verifies a module of
Triton only where it compiles it.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.block_kernel import BatchView
from scanrnn.executors.gpu.slice_kernel import SliceView
from scanrnn.machines import MACHINES
from tests.test_executors_lanes import (
    assert_equal_to_lax_scan,
    drawn,
    gpu_that_is_not_there,
    of_every_function,
)

VIEWS = BatchView, SliceView


def whole(f):
    """A function of whole numbers, near those of h."""
    return lambda h, x: h * f((4 * h).astype("int32")).astype(h.dtype) + x


def branch(h, x):
    """One of three branches for each number."""
    cases = (lambda h, x: h, lambda h, x: x, lambda h, x: h * x)

    def of_one(h, x):
        return lax.switch((jnp.abs(h) * 3).astype("int32"), cases, h, x)

    return jax.vmap(jax.vmap(of_one))(h, x)


# Those for which Triton once had no rule, or made a module that is not valid.
FAULTS = {
    "copy": lambda h, x: jnp.copy(jnp.tanh(h)) + x,
    "a case by a number": lambda h, x: lax.select_n((h > 0).astype("int32"), h, x),
    "three cases": branch,
}
OTHERS = {
    "every function of one number": lambda h, x: of_every_function(1.0)(h, x)[0],
    "a remainder": lambda h, x: jnp.mod(h, x * x + 1),
    "a power": lambda h, x: jnp.power(h * h + 1, x) + lax.integer_pow(h * h + 1, -3),
    "an angle": jnp.arctan2,
    "bounds": lambda h, x: jnp.clip(h, -1, 1) + jnp.maximum(x, jnp.minimum(h, 0)),
    "finite numbers": lambda h, x: jnp.nan_to_num(h) + x,
    "booleans": lambda h, x: jnp.where((h > 0) ^ ~(x > 0) | (h > x), h, x),
    "a case by booleans": lambda h, x: jnp.where(jnp.where(h > 0, x > 0, h > x), h, x),
    "whole numbers": whole(lambda k: k % 3 // 2 + (k & 1) - abs(k) + k**2 + ~k),
    "the sign of one": whole(lambda k: jnp.sign(k) * jnp.clip(-k, 0, 3)),
    "small ones": whole(lambda k: k.astype("int8") + k.astype("uint8").astype("int8")),
    "half precision": lambda h, x: jnp.tanh(h.astype("float16")).astype(h.dtype) * x,
    "a mask that is captured": lambda h, x: (
        h * jnp.arange(128, dtype="f4").reshape(4, 32) + x
    ),
    "bfloat16": lambda h, x: (h.astype("bfloat16") * jnp.bfloat16(2)).astype(h.dtype),
}


def run_products_by(view, monkeypatch):
    """Let only this view, of the two, run steps with products, as on an H100."""

    def refuse(graph, machine):
        raise NotAKernelError("it is not tested")

    of = SliceView.of
    monkeypatch.setattr(SliceView, "of", lambda graph, _: of(graph, MACHINES["h100"]))
    (other,) = (v for v in VIEWS if v is not view)
    monkeypatch.setattr(other, "of", refuse)


@pytest.fixture
def view(request, monkeypatch):
    """Only this view runs steps with products."""
    run_products_by(request.param, monkeypatch)
    return request.param


@pytest.fixture
def verified(monkeypatch):
    """Each module that Triton has made is verified; how many there were."""
    from jax._src.pallas.triton import lowering

    made, lower = [], lowering.lower_jaxpr_to_triton_module

    def checked(*args, **kwargs):
        result = lower(*args, **kwargs)
        result.module.operation.verify()
        made.append(result)
        return result

    monkeypatch.setattr(lowering, "lower_jaxpr_to_triton_module", checked)
    return made


def multiplying(f, W):
    def step(h, x):
        h = f(h @ W, x)
        return h, h

    return step


def elementwise(f, W):
    def step(h, x):
        h = f(h * W[0], x)
        return h, h

    return step


def assert_lowers(make, verified):
    options = scanrnn.Options(machine="h100", implementation=pallas_gpu.NAME)

    def loss(W, h, xs):
        outs = scanrnn.scan(make(W), h, xs, plan=options)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(outs))

    args = drawn((32, 32), (4, 32), (3, 4, 32), dtype="float32")
    with gpu_that_is_not_there():
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*args)
        traced.lower(lowering_platforms=("cuda",))
    assert len(verified) == 2


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("view", VIEWS, indirect=True)
@pytest.mark.parametrize("name", FAULTS)
def test_choices_and_copies_run_beside_products(name, view, verified):
    make = functools.partial(multiplying, FAULTS[name])
    assert_lowers(make, verified)
    assert_equal_to_lax_scan(make, drawn((32, 32), (4, 32), (3, 4, 32)))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("name", FAULTS)
def test_choices_and_copies_run_in_lanes(name, verified):
    make = functools.partial(elementwise, FAULTS[name])
    assert_lowers(make, verified)
    assert_equal_to_lax_scan(make, drawn((32, 32), (4, 32), (3, 4, 32)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("view", VIEWS, indirect=True)
@pytest.mark.parametrize("name", OTHERS)
def test_functions_beside_products_are_lowered_by_triton(name, view, verified):
    assert_lowers(functools.partial(multiplying, OTHERS[name]), verified)
