"""Kernels on a mesh of four devices. `test_layers_mesh` runs this file.

XLA cannot divide a kernel among devices. So it runs the loops there.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import scanrnn
from scanrnn.executors import pallas_gpu, pallas_tpu
from tests.test_executors_blocks import drawn

T, B, H = 3, 8, 16
CELLS = {"gru": scanrnn.cells.gru(), "indrnn": scanrnn.cells.indrnn()}
every_cell = pytest.mark.parametrize("name", CELLS)
every_kernel = pytest.mark.parametrize("kernel", [pallas_tpu.NAME, pallas_gpu.NAME])
every_mesh = pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])


def loss(name, implementation, params, carry, xs):
    step = functools.partial(CELLS[name].step, params)
    options = scanrnn.Options(implementation=implementation)
    outs = scanrnn.scan(step, carry, xs, plan=options)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)), outs


def values_and_gradients(f):
    return jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True))


@functools.cache
def on_one_device(name):
    f = functools.partial(loss, name, "scan")
    return values_and_gradients(f)(*drawn(CELLS[name], T, B, H))


def mesh_of(kind):
    return jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(kind,)))


def close(found, wanted):
    for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def is_of_kernels(function, *args):
    """Whether the interpreter of a kernel, or a kernel, is in a compiled program."""
    text = function.lower(*args).as_text(debug_info=True)
    return "first_to_last" in text or "last_to_first" in text


def test_there_are_four_devices():
    assert jax.device_count() == 4


@every_cell
@every_kernel
def test_kernel_runs_on_one_of_the_devices(name, kernel):
    run = values_and_gradients(functools.partial(loss, name, kernel))
    args = drawn(CELLS[name], T, B, H)
    assert is_of_kernels(run, *args)
    close(run(*args), on_one_device(name))


def assert_as_on_one_device(run, name):
    """The loops of a batch that is sharded are XLA's, and its results the same."""
    params, carry, xs = drawn(CELLS[name], T, B, H)
    args = params, jax.device_put(carry, P("data")), jax.device_put(xs, P(None, "data"))
    assert not is_of_kernels(run, *args)
    close(run(*args), on_one_device(name))


@every_mesh
@every_cell
@every_kernel
def test_sharded_batch_by_a_kernel_equals_lax_scan(name, kernel, kind):
    run = values_and_gradients(functools.partial(loss, name, kernel))
    with mesh_of(kind):
        assert_as_on_one_device(run, name)


@every_mesh
@every_cell
@every_kernel
def test_shard_map_of_a_kernel_equals_lax_scan(name, kernel, kind):
    with mesh_of(kind):

        @functools.partial(
            jax.shard_map,
            in_specs=(P(), P("data"), P(None, "data")),
            out_specs=(P(), (P("data"), P(None, "data"))),
        )
        def split(params, carry, xs):
            total, outs = loss(name, kernel, params, carry, xs)
            return jax.lax.psum(total, "data"), outs

        run = values_and_gradients(split)
        assert_as_on_one_device(run, name)


@every_mesh
@every_kernel
@pytest.mark.parametrize("of_shards", [True, False])
def test_step_on_a_mesh_may_ask_for_the_kernel_of_another_machine(
    kernel, kind, of_shards
):
    machine = {pallas_tpu.NAME: "tpu v5e", pallas_gpu.NAME: "h100"}[kernel]
    options = {"machine": machine, "implementation": kernel}
    found = []

    def plan(params, carry, xs):
        step = functools.partial(CELLS["gru"].step, params)
        found.append(scanrnn.plan(step, carry, xs, **options).executor.name)
        return xs

    with mesh_of(kind):
        params, carry, xs = drawn(CELLS["gru"], T, B, H, "float32")
        carry = jax.device_put(carry, P("data"))
        xs = jax.device_put(xs, P(None, "data"))
        specs = P(), P("data"), P(None, "data")
        split = jax.shard_map(plan, in_specs=specs, out_specs=specs[-1])
        jax.eval_shape(split if of_shards else plan, params, carry, xs)
    assert found == [kernel]


def test_kernel_that_is_not_asked_for_is_refused_on_a_mesh():
    with mesh_of(AxisType.Explicit):
        params, carry, xs = drawn(CELLS["indrnn"], T, B, H, "float32")
        carry = jax.device_put(carry, P("data"))
        xs = jax.device_put(xs, P(None, "data"))
        step = functools.partial(CELLS["indrnn"].step, params)
        plan = scanrnn.plan(step, carry, xs, machine="h100")
    reasons = {c.name: c.refusal for c in plan.candidates}
    assert "devices hold parts of its arrays" in reasons[pallas_gpu.NAME]
