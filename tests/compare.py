"""Compare programs that scan a step, in float64: values and all gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
from jax import lax

import scanrnn
from tests.step_table import T, bound


def is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def split_floats(tree):
    """The differentiable leaves of a tree, and a function to put them back."""
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [
        jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf for leaf in leaves
    ]
    floats = [leaf for leaf in leaves if is_float(leaf)]

    def join(new):
        new = iter(new)
        return treedef.unflatten([next(new) if is_float(x) else x for x in leaves])

    return floats, join


def score(outputs):
    """A scalar with a different derivative for each element of an output."""
    total = 0.0
    for leaf in jax.tree.leaves(outputs):
        if is_float(leaf):
            leaf = leaf.astype(complex if jnp.iscomplexobj(leaf) else float)
            slope = jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)
            total = total + jnp.sum(slope * jnp.sin(leaf) + 0.1 * leaf * leaf)
    return jnp.real(total)


def training_jaxpr(scan, make):
    """The jaxpr of the gradient of `score` for a scan of a step."""
    step, params, init, xs = make

    def loss(params, init, xs):
        return score(bound(scan, step)(params, init, xs))

    return jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(params, init, xs).jaxpr


def programs(make, transform, **options):
    """A function that makes a transformed program from a scan, and its inputs."""
    step, params, init, xs = make
    length = None if xs is not None else T
    floats, join = split_floats((params, init, xs))

    def program(scan):
        run = bound(scan, step, length=length, **options)

        def loss(floats):
            return score(run(*join(floats)))

        def outputs(floats):
            return run(*join(floats))

        return transform(loss, outputs)

    return program, floats


class Same:
    """A step and its arguments as a key: equal if they are the same objects."""

    def __init__(self, make):
        step, *arguments = self.make = make  # keep them, so that no id is used again
        leaves, treedef = jax.tree.flatten(arguments)
        self.key = step, treedef, *map(id, leaves)

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return self.key == other.key


@functools.lru_cache(256)
def plain(same, transform, **options):
    """The results of `lax.scan`, computed once for all tests that compare with them."""
    if transform is value_and_gradients:
        transform = outputs_of_gradients  # equal, and cheaper
    program, floats = programs(same.make, transform, **options)
    return program(lax.scan)(floats)


def assert_same(make, transform, rtol=1e-9, plan=None, unroll=1, **options):
    wanted = plain(Same(make), transform, **options)
    program, floats = programs(make, transform, unroll=unroll, **options)
    got = program(functools.partial(scanrnn.scan, plan=plan))(floats)
    keys = [
        [
            jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
            for x in jax.tree.leaves(tree)
        ]
        for tree in (got, wanted)
    ]
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    chex.assert_trees_all_equal_dtypes(*keys)
    chex.assert_trees_all_close(*keys, rtol=rtol, atol=1e-10)


def value_and_gradients(loss, outputs):
    """Two programs: the outputs of a scan without a gradient, and the gradients."""

    def both(floats):
        return outputs(floats), jax.grad(loss)(floats)

    return jax.jit(both)


def outputs_of_gradients(loss, outputs):
    """The same numbers from one program, in which the scan is differentiated."""

    def scored(floats):
        results = outputs(floats)
        return score(results), results

    return jax.jit(lambda x: jax.grad(scored, has_aux=True)(x)[::-1])


def outputs_alone(loss, outputs):
    return jax.jit(outputs)
