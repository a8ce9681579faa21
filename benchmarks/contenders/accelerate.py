"""`scanrnn.accelerate` over the models of other libraries."""

import scanrnn
from benchmarks.contenders._base import Contender, JaxRunner

PEERS = ("flax_linen", "flax_nnx", "haiku", "equinox", "keras", "lax_scan")


def parse(name: str) -> Contender:
    """The contender of that name, in which every `lax.scan` is planned.

    Raises:
      ValueError: if the name is not in `PEERS`.
    """
    from benchmarks.contenders import find

    if name not in PEERS:
        raise ValueError(f"accelerate:{name}: expected one of {PEERS}")
    peer = find(name)

    def setup(problem):
        model = peer.model(problem)
        return JaxRunner(problem, model._replace(apply=scanrnn.accelerate(model.apply)))

    def supports(case):
        if not hasattr(scanrnn, "accelerate"):
            return "this scanrnn has no accelerate"
        return peer.supports(case)

    return Contender(f"accelerate:{name}", supports, setup)
