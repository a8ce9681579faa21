"""`python -m tests.compile_kernels MACHINE NAMES DTYPES FEATURES`: compiled gradients.

Each loop is a kernel. Small sizes are odd, so that every array fills its registers in
part. The environment is that of `benchmarks.compiled.targets`.
"""

import functools
import itertools
import sys

import jax
import jax.numpy as jnp

import scanrnn
from benchmarks.compiled import targets
from tests.cell_table import CELLS

T = 6
# For each machine: the executor, how a kernel is called in a compiled program, and B.
KERNELS = {
    "v5e": ("pallas_tpu", "tpu_custom_call", 3),
    # Each core gets 17 examples.
    "v5p": ("pallas_tpu", "tpu_custom_call", 34),
    "h100": ("pallas_gpu", "__gpu$xla.gpu.triton", 3),
}


def kernels_of(machine: str, name: str, dtype: str, H: int) -> tuple[int, int]:
    """How many kernels of ours the compiler's program has, and how many loops."""
    implementation, call, B = KERNELS[machine]
    options = scanrnn.Options(
        machine=targets.MACHINES[machine], implementation=implementation
    )
    row, cell = CELLS[name], CELLS[name].cell
    D = row.in_features if row.in_features == 3 else H
    # Without autotuning XLA compiles no odd and large products for an H100.
    if H >= 512:
        B, D = 32, H
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
            a.shape, a.dtype, sharding=targets.sharding(machine)
        ),
        (params, carry, xs),
    )
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*args)
    compiled = lowered.compile(compiler_options=targets.ALL[machine].options)
    text = compiled.as_text() or ""
    return text.count(call), text.count(" while(")


def main() -> None:
    """Prints a line for each dtype and cell; `*` is all cells without a convolution."""
    machine, names, dtypes, features = sys.argv[1:]
    names = names.split(",")
    if names == ["*"]:
        names = [name for name in CELLS if not name.startswith("conv")]
    for dtype, name in itertools.product(dtypes.split(","), names):
        found = kernels_of(machine, name, dtype, int(features))
        print(name, dtype, *found, flush=True)


if __name__ == "__main__":
    main()
