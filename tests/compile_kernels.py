"""`python -m tests.compile_kernels NAME DTYPE`: gradients of a cell, for a TPU v5e.

Each loop is a kernel. Sizes are odd, so that every array fills its registers in part.
The environment is that of `benchmarks.compiled.targets`.
"""

import functools
import sys

import jax
import jax.numpy as jnp

import scanrnn
from benchmarks.compiled import targets
from tests.cell_table import CELLS

T, B, H = 6, 3, 20


def kernels_of(name: str, dtype: str) -> int:
    """How many kernels the compiler's program has."""
    row = CELLS[name]
    cell, options = row.cell, scanrnn.Options(
        machine="tpu v5e", implementation="pallas_tpu"
    )  # fmt: skip
    D = row.in_features if row.in_features == 3 else H
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), D, H))
    params = {k: jax.ShapeDtypeStruct(v.shape, dtype) for k, v in params.items()}
    xs = jax.ShapeDtypeStruct((T, B, D), dtype)
    carry = jax.eval_shape(lambda p, x: cell.initial_carry(p, x[0]), params, xs)

    def loss(params, carry, xs):
        step = functools.partial(cell.step, params)
        leaves = jax.tree.leaves(scanrnn.scan(step, carry, xs, plan=options))
        return sum(jnp.sum(jnp.sin(leaf.astype(jnp.float32))) for leaf in leaves)

    args = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(
            a.shape, a.dtype, sharding=targets.sharding("v5e")
        ),
        (params, carry, xs),
    )
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*args)
    return (lowered.compile().as_text() or "").count("tpu_custom_call")


def main() -> None:
    """Prints a line for each cell; `*` is all that have no convolution."""
    names, dtype = sys.argv[1].split(","), sys.argv[2]
    if names == ["*"]:
        names = [name for name in CELLS if not name.startswith("conv")]
    for name in names:
        print(name, kernels_of(name, dtype), flush=True)


if __name__ == "__main__":
    main()
