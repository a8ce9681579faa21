"""Words for what a plan has: sizes, types, counts, kinds of carries."""

from __future__ import annotations

from scanrnn.planner.ir import ops
from scanrnn.planner.parallel import affine


def tally(names, between: str = ", ") -> str:
    """Names, each once, with how often it comes: "2 add, dot_general"."""
    if not names:
        return "nothing"
    counts = {n: names.count(n) for n in dict.fromkeys(names)}
    return between.join(f"{c} {n}" if c > 1 else n for n, c in counts.items())


def listed(found) -> str:
    """The types of variables: "float32[4,64], bool[4]"."""
    return ", ".join(ops.aval(v).str_short() for v in found) or "none"


def in_bytes(n: float) -> str:
    """A number of bytes: "5.12 kB"."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.4g} {unit}"
        n /= 1000
    return f"{n:.4g} GB"


def at_once(plan) -> str:
    """How many steps a product outside the loop has."""
    return f"for {plan.chunk or 'all'} steps at once"


def kinds_of_leaves(where: str, graph) -> str:
    """Of which kind the leaves of a carry are: whether they must run step by step."""
    if not graph.carry:
        return ""
    kinds = {}
    for group in affine.groups(graph):
        why = f" ({group.why})" if group.why else ""
        kinds |= {k: f"{group.kind}{why}" for k in group.leaves}
    leaves = [
        f"{ops.aval(v).str_short()} {kinds[k]}" for k, v in enumerate(graph.carry)
    ]
    return f"Over time{where}, by leaf of the carry: {tally(leaves, '; ')}."
