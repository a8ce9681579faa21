"""`python -m tests.compile_graphs`: what stays outside of the CUDA graphs of a loop.

Each line has the name of an operation, and the kinds of thunks that the loop starts
beside graphs if its step has that operation. The environment is that of
`benchmarks.compiled.targets`.
"""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
from jax import lax

import scanrnn
from benchmarks.compiled import targets, thunks

T, B, H = 40, 8, 64


def _square(h):
    return h.T @ h + H * jnp.eye(H)


def _drawn(h):
    key = jax.random.fold_in(jax.random.key(0), h.sum().astype(int))
    return h * jax.random.bernoulli(key, 0.5, h.shape)


def _repeated(h, length):
    return lax.scan(lambda h, _: (jnp.tanh(h @ _square(h)), None), h, length=length)[0]


# Operations that a plan names, and others. Each is a function of the carry.
NAMED = {
    "while": lambda h: h * lax.while_loop(
        lambda n: n < h.sum(), lambda n: n + 1, jnp.int32(0)
    ),
    "cond": lambda h: lax.cond(
        h.sum() > 0, lambda h: h @ _square(h), lambda h: jnp.sin(h @ _square(h)), h
    ),
    "scan": lambda h: _repeated(h, 4),
    "cholesky": lambda h: h @ jnp.linalg.cholesky(_square(h)),
    "triangular_solve": lambda h: lax.linalg.triangular_solve(_square(h), h),
    "lu": lambda h: h @ jnp.linalg.inv(_square(h)),
    "fft": lambda h: jnp.fft.fft(h).real,
}  # fmt: skip
OTHERS = {
    "nothing": lambda h: h,
    "product": lambda h: h @ _square(h),
    "random numbers": _drawn,
    "a loop of one step": lambda h: _repeated(h, 1),
    "a short sort": jnp.sort,
    "a long sort": lambda h: jnp.sort(jnp.tile(h.ravel(), 64))[:512].reshape(B, H),
}


def _kinds(operation, options) -> set[str]:
    """The kinds of thunks in the body of the compiled loop, without its graphs."""

    def fn(W, U, xs):
        def step(h, x):
            h = jnp.tanh(x @ W + operation(h) @ U)
            return h, h

        return scanrnn.scan(step, jnp.zeros((B, H)), xs, plan=options)

    where = targets.sharding("h100")
    shapes = ((H, H), (H, H), (T, B, H))
    args = [jax.ShapeDtypeStruct(s, jnp.float32, sharding=where) for s in shapes]
    with tempfile.TemporaryDirectory() as folder:
        # The expression matches no pass of XLA: only the thunks are written.
        dump = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "^$"}
        compiler = targets.TARGETS["h100"].options | dump
        jax.jit(fn).lower(*args).compile(compiler_options=compiler)
        paths = sorted(pathlib.Path(folder).glob("*.thunk_sequence*.txt"))
        text = paths[-1].read_text()
    (loop,) = [thunk for thunk in thunks.parse(text) if thunk.kind == "kWhile"]
    return {thunk.kind for thunk in loop.parts["body"]} - {"kCommandBuffer"}


def main() -> None:
    """Prints a line for each operation."""
    options = scanrnn.Options(
        machine=targets.MACHINES["h100"], implementation="planned"
    )
    for name, operation in (NAMED | OTHERS).items():
        print(name, *sorted(_kinds(operation, options)), sep="\t", flush=True)


if __name__ == "__main__":
    main()
