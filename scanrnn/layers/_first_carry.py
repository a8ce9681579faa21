"""Check a first carry that a user gives to a layer, and place it on a mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, get_abstract_mesh

from scanrnn.cells._checks import carry_hint, is_floating
from scanrnn.cells._placing import placed


def check_initial_carry(given, wanted, same_dtype=True):
    """Raise unless the carry `given` is like `wanted`; return it as arrays.

    Args:
        given: the carry to check.
        wanted: a carry of arrays, or of their shapes and dtypes.
        same_dtype: False if only the structure and the shapes must be the same.

    Raises:
        TypeError: if the structure or a dtype differs.
        ValueError: if a shape differs.
    """
    structure = jax.tree.structure(wanted)
    if jax.tree.structure(given) != structure:
        raise TypeError(
            f"RNN: initial_carry is {_types(given)}, want {_types(wanted)}, as "
            f"return_carry=True gives it{_hints(given, wanted)}"
        )
    given = jax.tree.map(jnp.asarray, given)
    paths = jax.tree_util.tree_leaves_with_path(wanted)
    for (path, want), leaf in zip(paths, jax.tree.leaves(given), strict=True):
        name = f"initial_carry{jax.tree_util.keystr(path)}"
        if leaf.shape != want.shape:
            raise ValueError(
                f"RNN: {name} has shape {leaf.shape}, want {want.shape}: the batch "
                "axes of inputs, then the hidden features"
            )
        if same_dtype and leaf.dtype != want.dtype:
            way = f", or make the layer with carry_dtype={leaf.dtype}"
            raise TypeError(
                f"RNN: {name} has dtype {leaf.dtype}, want {want.dtype}; cast it"
                f"{way if is_floating(leaf.dtype) else ''}"
            )
    return given


def begun(given, fresh):
    """The carry to begin with: the given one, on the mesh as `fresh` is; or `fresh`."""
    return fresh if given is None else jax.tree.map(placed, given, fresh)


def placed_as_inputs(carry, x, feature_axes):
    """A carry, on the mesh as `x` is over its batch axes, if it is on none itself."""
    axes = get_abstract_mesh().axis_types
    if AxisType.Manual in axes:
        carry = sharded_like(carry, x, feature_axes)
    if AxisType.Explicit not in axes:
        return carry
    like = jax.eval_shape(lambda c, x: sharded_like(c, x, feature_axes), carry, x)
    return jax.tree.map(placed, carry, like)


def sharded_like(carry, x, feature_axes):
    """A carry `[*batch, ...]` with the sharding of `x` over its batch axes."""
    features = tuple(range(x.ndim - feature_axes, x.ndim))
    zeros = jnp.zeros_like(jnp.sum(x, axis=features))

    def shard(leaf):
        numbers = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        if leaf.shape[: zeros.ndim] != zeros.shape or not numbers:
            return leaf
        trailing = tuple(range(zeros.ndim, leaf.ndim))
        return leaf + jnp.expand_dims(zeros, trailing).astype(leaf.dtype)

    return jax.tree.map(shard, carry)


def _hints(given, wanted):
    """A hint how to turn the first plain tuple of the carry into what is wanted."""
    if hasattr(wanted, "_fields"):
        return carry_hint(type(wanted), given)
    parts = wanted if type(wanted) is tuple else ()
    if parts and jax.tree.structure(given) == jax.tree.structure(parts[0]):
        return f". That is one of its {len(parts)} parts; give all"
    if hasattr(given, "to_flax"):
        return (
            f". to_flax() of this {type(given).__name__} gives what a Flax cell takes"
        )
    if not parts or not isinstance(given, tuple | list):
        return ""
    pairs = zip(given, wanted, strict=False)
    return next(filter(None, (_hints(*pair) for pair in pairs)), "")


class _Word(str):
    """Text that is shown without quotes inside a container."""

    def __repr__(self):
        return str(self)


def _types(tree):
    """A pytree with types in place of its arrays: `GRUCarry(h=float32[2,5])`."""

    def word(leaf):
        array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        sizes = ",".join(map(str, leaf.shape)) if array else ""
        return _Word(f"{leaf.dtype}[{sizes}]" if array else type(leaf).__name__)

    return jax.tree.map(word, tree)
