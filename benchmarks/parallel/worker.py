"""A process that compiles loops for one machine; rows and records are lines of JSON.

python -m benchmarks.parallel.worker
"""

import jax
import jax.numpy as jnp

from benchmarks.compiled import measure, programs, targets, worker
from benchmarks.contenders._base import train_step
from benchmarks.parallel import loops
from benchmarks.parallel.rows import Row
from benchmarks.programs.measure import LEARNING_RATE


def compile_(row: Row) -> dict:
    """The record of a row: the training step of a loop, compiled for a machine."""
    loop = row.loop(_shape)
    apply = loops.function(loop, row.form, targets.MACHINES[row.machine])
    args = [loop.program.params, loop.program.inputs]
    args.append(jax.eval_shape(apply, *args))
    sharding = targets.sharding(row.machine)
    structs = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), args
    )
    step = jax.jit(train_step(apply, LEARNING_RATE), donate_argnums=0)
    lowered = step.lower(*structs)
    begin = programs.processor_seconds()
    compiled = lowered.compile(compiler_options=targets.ALL[row.machine].options)
    seconds = programs.processor_seconds() - begin
    costs = measure.read(compiled.as_text())
    wanted = ("launches", "cycles", "unpriced")
    return row.as_json() | {
        **{name: costs[name] for name in wanted},
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "compile_seconds": round(seconds, 2),
    }


def _shape(*shape):
    """Nothing is run, so a shape is enough."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _answer(request):
    row = Row(**request["row"])
    try:
        return compile_(row)
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        return row.as_json() | {"error": f"{type(error).__name__}: {first}"}


if __name__ == "__main__":
    worker.main(_answer)
