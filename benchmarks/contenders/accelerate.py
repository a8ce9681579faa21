"""`scanrnn.accelerate` over code that we do not own: each library's own model."""

import scanrnn
from benchmarks.contenders._base import Contender, JaxRunner

PEERS = ("flax_linen", "flax_nnx", "haiku", "equinox", "keras", "lax_scan")


def parse(name: str) -> Contender:
    """The contender of that name, with every `lax.scan` inside it planned."""
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
