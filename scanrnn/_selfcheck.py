"""Run cells of every kind with every executor on this device: a report to send."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp

from scanrnn import cells
from scanrnn._scan import EXECUTORS, scan
from scanrnn._scan import plan as make_plan
from scanrnn._tune.clock import time_of
from scanrnn._tune.errors import error, largest
from scanrnn.cells._checks import check_dtype, check_size, is_floating

CELLS: Mapping[str, Callable[[], cells.Cell]] = {
    "elman": cells.elman,
    "lstm": cells.lstm,
    "lstm, layer norm": functools.partial(cells.lstm, norm="ba2016"),
    "lstm, projection": functools.partial(cells.lstm, projection=8),
    "lstm, heads": functools.partial(cells.lstm, heads=2),
    "gru": cells.gru,
    "mgu": cells.mgu,
    "ugrnn": cells.ugrnn,
    "rhn": functools.partial(cells.rhn, depth=2),
    "multiplicative_lstm": cells.multiplicative_lstm,
    "indrnn": cells.indrnn,
    "sru": cells.sru,
    "qrnn": cells.qrnn,
    "mingru": cells.mingru,
    "minlstm": cells.minlstm,
    "lru": cells.lru,
    "rglru": cells.rglru,
    "slstm": cells.slstm,
    "mlstm": cells.mlstm,
    "gla": cells.gla,
    "mamba2": cells.mamba2,
    "deltanet": cells.deltanet,
    "gated_deltanet": cells.gated_deltanet,
    "rwkv7": cells.rwkv7,
}
BASE = "scan"


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one cell with one executor.

    Attributes:
      cell: the name of the cell.
      dtype: the dtype of parameters, inputs and carry.
      implementation: the name of the executor.
      error: the largest error of an output or gradient against `lax.scan`: its 2-norm
        divided by that of the result, or by 1e-4 of the largest output's or gradient's
        if that is more; infinite if it is not finite; None if it was not run.
      seconds: the median time of a training step, in seconds; None if it was not timed.
      reason: why it was not run, or ""; the error, if it failed.
      right: whether the error is at most 1e-3, or 1e-2 for float32 on a GPU, or 4e-2
        for half precision and on a TPU; None if it was not run.
    """

    cell: str
    dtype: str
    implementation: str
    error: float | None = None
    seconds: float | None = None
    reason: str = ""
    right: bool | None = None


@dataclasses.dataclass(frozen=True)
class SelfCheck:
    """The report of `selfcheck`; `print` it.

    Attributes:
      where: the device, and the versions of jax and scanrnn.
      checks: one `Check` for each cell, dtype and executor.
    """

    where: str
    checks: tuple[Check, ...]

    def __str__(self) -> str:
        """The report as a table, one line for each check."""
        lines = [f"scanrnn.selfcheck on {self.where}"]
        for c in self.checks:
            found = [
                "WRONG" if c.right is False else "",
                "" if c.error is None else f"error {c.error:.1e}",
                "" if c.seconds is None else f"{1e3 * c.seconds:.3g} ms",
                c.reason,
            ]
            words = ", ".join(filter(None, found))
            lines.append(f"{c.cell:20} {c.dtype:9} {c.implementation:11} {words}")
        wrong = sum(c.right is False for c in self.checks)
        ran = sum(c.right is not None for c in self.checks)
        return "\n".join([*lines, f"{wrong} of {ran} checks are wrong"])


def selfcheck(
    names: Iterable[str] | None = None,
    *,
    dtypes: Iterable[str] = ("float32", "bfloat16"),
    implementations: Iterable[str] | None = None,
    sizes: tuple[int, int, int] = (16, 8, 128),
    runs: int = 5,
) -> SelfCheck:
    """Run cells of every kind with every executor, and compare with `lax.scan`.

    Convolutions and cells that wrap others are left out.

    If you have a TPU or a GPU, run this and send us what it prints. Our kernels have
    never run on a TPU, and on no GPU but an H100 and an H200. The report says whether
    they are right on your device, and how fast they are.

    Args:
      names: names of cells, as in the printed report; None for all of them.
      dtypes: names of the dtypes of parameters, inputs and carry.
      implementations: names of executors; None for all of them. "scan" always runs.
      sizes: `(T, B, H)`: the number of steps, the batch size, and the number of
        features of inputs and carry. A cell that cannot have this H is not run: the
        heads of an LSTM want an even H, and a projection one of 8 or more.
      runs: how many training steps are timed; 0 for none.

    Returns:
      A `SelfCheck`: errors of values and gradients, and times in seconds.

    Raises:
      TypeError: if names are given as one text and not as a list, a dtype is not a
        floating-point one of 16 bits or more, or a size or `runs` is not an integer.
      ValueError: if there is no cell or executor of such a name, if there are not three
        sizes of at least 1, for fewer than 0 runs, or for float64 without
        `JAX_ENABLE_X64=1`.

    Example:
      >>> import scanrnn
      >>> sizes = (3, 2, 8)
      >>> report = scanrnn.selfcheck(["gru"], dtypes=["float32"], sizes=sizes, runs=1)
      >>> "pallas_tpu" in [c.implementation for c in report.checks]
      True
      >>> max(c.error or 0.0 for c in report.checks) < 1e-5
      True
    """
    lists = {"names": names, "dtypes": dtypes, "implementations": implementations}
    for argument, given in lists.items():
        if isinstance(given, str):
            raise TypeError(
                f"selfcheck: {argument} is the text {given!r}, want a list: "
                f"{argument}=[{given!r}]"
            )
    names = list(CELLS) if names is None else list(names)
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        known = ", ".join(map(repr, CELLS))
        raise ValueError(f"selfcheck: no cell {unknown[0]!r}; there are {known}")
    asked = list(EXECUTORS if implementations is None else implementations)
    unknown = [each for each in asked if each not in EXECUTORS]
    if unknown:
        known = ", ".join(map(repr, EXECUTORS))
        raise ValueError(f"selfcheck: no executor {unknown[0]!r}; there are {known}")
    ways = [BASE, *(each for each in EXECUTORS if each in asked and each != BASE)]
    kinds, checks = _dtypes(dtypes), []
    _check_sizes(sizes, runs)
    for name in names:
        for dtype in kinds:
            checks += _checks(name, dtype, ways, sizes, runs)
    device = jax.devices()[0]
    where = f"{device.device_kind} ({device.platform}), jax {jax.__version__}"
    # The package itself cannot be imported from here; by now it is loaded.
    version = sys.modules["scanrnn"].__version__
    return SelfCheck(f"{where}, scanrnn {version}", tuple(checks))


def _dtypes(given):
    """The dtypes; raise unless every cell can be computed in each of them."""
    kinds = [check_dtype("selfcheck", "each of dtypes", each) for each in given]
    for kind in kinds:
        if not is_floating(kind):
            raise TypeError(
                f"selfcheck: dtypes has {kind}, want floating-point dtypes of 16 bits "
                "or more"
            )
    if jnp.dtype("float64") in kinds and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "selfcheck: dtypes has float64, which is switched off in JAX; set "
            "JAX_ENABLE_X64=1, or leave it out"
        )
    return kinds


def _check_sizes(sizes, runs):
    """Raise unless there are three sizes of at least 1, and at least 0 runs."""
    if not isinstance(sizes, Sequence) or len(sizes) != 3:
        raise ValueError(
            f"selfcheck: sizes={sizes!r}, want (T, B, H), such as (16, 8, 128)"
        )
    for place, size in zip("TBH", sizes, strict=True):
        check_size("selfcheck", f"{place} of sizes", size)
    if not isinstance(runs, int) or runs < 0:
        raise ValueError(f"selfcheck: runs={runs!r}, want an int of at least 0")


def _checks(name, dtype, ways, sizes, runs) -> list[Check]:
    T, B, H = sizes
    cell = CELLS[name]()
    try:
        params = cell.init(jax.random.key(0), H, H)
    except ValueError as refusal:
        return [Check(name, str(dtype), way, reason=str(refusal)) for way in ways]
    params = {k: v.astype(dtype) for k, v in params.items()}
    xs = jax.random.normal(jax.random.key(1), (T, B, H), jnp.float32).astype(dtype)
    carry = cell.initial_carry(params, xs[0])
    wanted, found = None, []
    for implementation in ways:
        check = Check(name, str(dtype), implementation)
        try:
            make_plan(
                functools.partial(cell.step, params),
                *(carry, xs),
                implementation=implementation,
            )
        except ValueError as refusal:
            found.append(dataclasses.replace(check, reason=str(refusal)))
            continue
        run = jax.jit(functools.partial(_train, cell, implementation))
        try:
            made = run(params, carry, xs)
            jax.block_until_ready(made)
            times = [time_of(run, params, carry, xs) for _ in range(runs)]
        # A compiler or a device may fail in any way, and that is what to report.
        except Exception as failure:
            if implementation == BASE:
                raise
            line = str(failure).strip().partition("\n")[0]
            reason = f"{type(failure).__name__}: {line}"
            found.append(dataclasses.replace(check, reason=reason, right=False))
            continue
        wanted = made if wanted is None else wanted
        off = error(made, wanted)
        median = statistics.median(times) if times else None
        told = {"error": off, "seconds": median, "right": off <= largest(wanted)}
        found.append(dataclasses.replace(check, **told))
    return found


def _train(cell, implementation, params, carry, xs):
    """The outputs, and the gradients of parameters, carry and inputs."""

    def loss(params, carry, xs):
        step = functools.partial(cell.step, params)
        outs = scan(step, carry, xs, implementation=implementation)
        leaves = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(outs)]
        return sum(jnp.mean(jnp.sin(leaf)) for leaf in leaves), outs

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(params, carry, xs)
