"""How long the matrix products of an LSTM take alone.

Each product runs as a plan runs it: `x @ W` for all steps at once, `h @ U` in a loop,
the transposed product in another loop, and the gradients of both weights. The loops run
with the batch first and with the features first, and the faster time counts. The sum is
no lower bound of a whole step: another way to run the products may be faster.
"""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.products import fastest
from scanrnn.planner.ir.gemm import gemm_p

# Their name in results files, whose first ones called them so.
KEY = "floors"
# T, B, D, H, dtype
CASES = (
    (30, 32, 128, 128, "float32"),
    (30, 128, 128, 128, "float32"),
    (30, 32, 512, 512, "float32"),
    (30, 128, 512, 512, "float32"),
    (4096, 2, 256, 128, "float32"),
    (30, 32, 512, 512, "bfloat16"),
    (30, 128, 512, 512, "bfloat16"),
    (30, 32, 1024, 1024, "bfloat16"),
    (30, 128, 1024, 1024, "bfloat16"),
)
MATRICES = (((1,), (0,)), ((), ()))
ROWS = (((0,), (0,)), ((), ()))


def products_alone(cases=CASES) -> list[dict]:
    """Seconds of all products of a forward pass, and of a training step."""
    found = []
    for T, B, D, H, dtype in cases:
        steps = T * B
        inputs = _seconds((steps, D), (D, 4 * H), dtype, MATRICES)
        forward = inputs + _in_loop(T, B, H, 4 * H, dtype)
        gradients = sum(
            _seconds((steps, n), (steps, 4 * H), dtype, ROWS) for n in (D, H)
        )
        train = forward + _in_loop(T, B, 4 * H, H, dtype) + gradients
        sizes = {"T": T, "B": B, "D": D, "H": H, "dtype": dtype}
        found.append(sizes | {"forward": forward, "train": train})
    return found


def _seconds(a, b, dtype, dimension_numbers) -> float:
    """Seconds of one product outside of a loop."""
    a, b = jnp.ones(a, dtype), jnp.ones(b, dtype)
    numbers = {"dimension_numbers": dimension_numbers, "precision": None}
    run = jax.jit(
        lambda a, b: gemm_p.bind(
            a, b, preferred_element_type=jnp.dtype("float32"), **numbers
        )
    )
    return fastest(lambda: run(a, b).block_until_ready())[0]


def _in_loop(T, B, K, N, dtype) -> float:
    """Seconds of T products in a loop, batch first or features first: the faster."""
    data, matrix = jnp.ones((B, K), dtype), jnp.full((K, N), 1e-3, dtype)
    turned = jnp.full((N, K), 1e-3, dtype)
    return min(
        _chained(T, data, lambda a: (a, matrix)),
        _chained(T, data.T, lambda a: (turned, a)),
    )


def _chained(T, a, operands) -> float:
    """Seconds of T products in a loop, each of which needs the result before it."""

    def step(_, a):
        z = jnp.dot(*operands(a), preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice(a, z[:1, :1].astype(a.dtype), (0, 0))

    run = jax.jit(lambda a: lax.fori_loop(0, T, step, a))
    return fastest(lambda: run(a).block_until_ready())[0]
