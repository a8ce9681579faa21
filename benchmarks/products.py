"""How fast the matrix products of a recurrence are alone: the limit of its loops.

One is `h @ U` in a loop that does nothing else, for `[B, H]` and `[H, 4H]`. The other
is the gradient of the weights, `h.T @ dz` over 30 steps, as JAX writes it and as
scanrnn writes it. If the product of a loop runs on one core only, or if half precision
is no faster than float32, then no plan of the step can help.
"""

import functools
import time

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.planner.ir.gemm import gemm_p

SIZES = ((2, 128), (32, 128), (128, 128), (32, 512), (128, 512), (128, 1024))
STEPS = 30


def products() -> list[dict]:
    """GFLOP/s and busy cores of each product, for both dtypes."""
    found = []
    for (B, H), dtype in ((size, dtype) for size in SIZES for dtype in _DTYPES):
        row = {"B": B, "H": H, "dtype": dtype}
        for name, make in KINDS.items():
            seconds, cores = fastest(make(B, H, dtype))
            row[name] = {
                "gflops": STEPS * 2 * B * H * 4 * H / seconds / 1e9,
                "cores": cores,
            }
        found.append(row)
    return found


_DTYPES = ("float32", "bfloat16")


def _in_loop(B, H, dtype):
    U = jnp.full((H, 4 * H), 1e-3, dtype)

    def step(_, h):
        z = jnp.dot(h, U, preferred_element_type=jnp.float32)
        return z[:, :H].astype(dtype)

    h = jnp.ones((B, H), dtype)
    run = jax.jit(lambda h: lax.fori_loop(0, STEPS, step, h))
    return lambda: run(h).block_until_ready()


def _gradient(product, B, H, dtype):
    h, dz = (jnp.ones((STEPS * B, n), dtype) for n in (H, 4 * H))
    rows = {"dimension_numbers": (((0,), (0,)), ((), ()))}
    rows |= {"precision": None, "preferred_element_type": jnp.dtype("float32")}
    run = jax.jit(lambda h, dz: product(h, dz, **rows))
    return lambda: run(h, dz).block_until_ready()


KINDS = {
    "in the loop": _in_loop,
    "weight gradient": functools.partial(_gradient, lax.dot_general),
    "weight gradient of scanrnn": functools.partial(_gradient, gemm_p.bind),
}


def fastest(run, least=0.25):
    """Seconds of the fastest call, and the cores that were busy on average."""
    run()
    times, processor, begin = [], time.process_time(), time.perf_counter()
    while not times or sum(times) < least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    processor = time.process_time() - processor
    return min(times), processor / (time.perf_counter() - begin)
