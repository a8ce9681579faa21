"""The naive step under `scanrnn.scan`, with all passes or with some of them."""

import functools

import scanrnn
from benchmarks.contenders._base import Contender, JaxRunner
from benchmarks.contenders.lax_scan import naive

# The rungs of the ladder: each adds one pass to the one before.
PASSES = ("split", "hoist", "merge", "layout", "sink", "defer")
RESIDUALS = ("minimal", "recompute", "chunked", "everything")
EXECUTORS = ("planned", "associative", "chunkwise", "pallas_gpu", "pallas_tpu")


def with_options(name: str, **options) -> Contender:
    """The planned scan with `scanrnn.Options(**options)`; all passes run by default."""

    def setup(problem):
        plan = scanrnn.Options(**options) if options else None
        scan = functools.partial(scanrnn.scan, plan=plan) if plan else scanrnn.scan
        return JaxRunner(problem, naive(problem, scan))

    def supports(case):
        if options and not hasattr(scanrnn, "Options"):
            return "this scanrnn has no Options"
        return None

    return Contender(name, supports, setup)


def parse(spec: str) -> Contender:
    """The scan with these options alone, such as `"split+hoist+recompute+chunk5"`.

    The name of an executor is taken alone: all passes run.

    Raises:
      ValueError: if an option is unknown, or if there are two residual policies.
    """
    if spec in EXECUTORS:
        return with_options(f"scanrnn:{spec}", implementation=spec)
    words = [word for word in spec.split("+") if word]
    chunks = [word for word in words if word[5:].isdigit() and word[:5] == "chunk"]
    words = [word for word in words if word not in chunks]
    known = (*PASSES, *RESIDUALS)
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"scanrnn:{spec}: unknown {unknown}, expected any of {known}")
    options: dict = {name: name in words for name in PASSES}
    if chunks:
        options["chunk"] = int(chunks[-1].removeprefix("chunk"))
    residuals = [word for word in words if word in RESIDUALS]
    if len(residuals) > 1:
        raise ValueError(f"scanrnn:{spec}: expected one residual policy, {residuals}")
    if residuals:
        options["residuals"] = residuals[0]
    return with_options(f"scanrnn:{spec}", **options)


CONTENDERS = [with_options("scanrnn")]
