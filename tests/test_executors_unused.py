"""Outputs of a scan that nothing reads are removed before XLA sees the program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn

SCANS = {"lax.scan": lax.scan, "scanrnn.scan": scanrnn.scan}


def step(W, h, x):
    """The next state, and three outputs: a readout, a sort and the state itself."""
    h = jnp.tanh(h @ W["h"] + x @ W["x"])
    return h, (h @ W["y"], jnp.sort(h, -1), h)


def drawn(T=5, B=3, H=4):
    def draw(i, *shape):
        return jax.random.normal(jax.random.key(i), shape) / 2

    weights = {"h": draw(0, H, H), "x": draw(1, H, H), "y": draw(2, H, 7)}
    return weights, draw(3, B, H), draw(4, T, B, H)


def read(scan, used):
    """A function that reads the final state, and some of the outputs."""

    def run(W, h, xs):
        h, ys = scan(lambda h, x: step(W, h, x), h, xs)
        return jnp.sum(jnp.cos(h)) + sum(jnp.sum(jnp.sin(ys[i])) for i in used)

    return run


@pytest.mark.parametrize("of", [lambda f: f, jax.grad], ids=["values", "gradient"])
def test_unused_outputs_are_removed_before_xla(of):
    """XLA would fuse a maximum with an argmax that nothing reads, and keep both."""
    args = drawn()
    for used, found in (((), False), ((1,), True)):
        text = jax.jit(of(read(scanrnn.scan, used))).lower(*args).as_text()
        assert ("stablehlo.sort" in text) == found


@pytest.mark.parametrize("used", [(), (0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_unused_outputs_leave_all_gradients_as_they_are(wrap, used):
    """A checkpoint removes them before it differentiates."""
    args = drawn()

    def second(scan):
        first = jax.grad(wrap(read(scan, used)), (0, 1, 2))
        return lambda *args: sum(jnp.sum(g**2) for g in jax.tree.leaves(first(*args)))

    for make in (lambda scan: wrap(read(scan, used)), second):
        wanted, found = (
            jax.jit(jax.value_and_grad(make(scan), (0, 1, 2)))(*args)
            for scan in SCANS.values()
        )
        for a, b in zip(*map(jax.tree.leaves, (wanted, found)), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["planned", "associative", "scan"])
def test_unused_outputs_are_removed_by_every_executor(name):
    def run(a, xs):
        def average(h, x):
            h = a * h + x
            return h, (h, jnp.sort(h))

        _, (ys, _) = scanrnn.scan(average, xs[0], xs, plan=options)
        return jnp.sum(jnp.sin(ys))

    options = scanrnn.Options(implementation=name)
    _, _, xs = drawn()
    batched = jax.vmap(jax.grad(run), (0, None))
    compiled = jax.jit(batched).lower(jnp.arange(3.0), xs)
    assert "stablehlo.sort" not in compiled.as_text()
    options = scanrnn.Options(implementation="scan")
    wanted = batched(jnp.arange(3.0), xs)
    found = compiled.compile()(jnp.arange(3.0), xs)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
