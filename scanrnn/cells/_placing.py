"""Place masks and carries on a mesh as the arrays that they meet.

Under Explicit axes JAX wants some operands to be sharded alike, and does not do it by
itself. Without such axes the functions here change nothing.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, get_abstract_mesh


def placed(a, like):
    """The array `a` as `like` is sharded, if `a` is replicated or on no mesh.

    Both have the same shape.
    """
    sharding, own = _explicit(like), jax.typeof(a).sharding
    if sharding in (None, own) or any(axes is not None for axes in own.spec):
        return a
    return jax.sharding.reshard(a, sharding)


def where(condition, a, b):
    """`jnp.where` for a condition that is broadcast to `a` and placed like it."""
    if _explicit(a) is not None:
        condition = placed(jnp.broadcast_to(condition, a.shape), a)
    return jnp.where(condition, a, b)


def _explicit(a):
    """How an array is sharded over Explicit axes of the present mesh, or None."""
    mesh = get_abstract_mesh()
    if AxisType.Explicit not in mesh.axis_types:
        return None
    sharding = jax.typeof(a).sharding
    return None if sharding.mesh.empty else sharding
