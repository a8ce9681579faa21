"""Count equations in jaxprs."""

import jax


def equations(jaxpr):
    """All equations of a jaxpr, and of the jaxprs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from equations(getattr(inner, "jaxpr", inner))


def _is_jaxpr(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def gemms(jaxpr):
    """The dots and convolutions of a jaxpr, and of the jaxprs inside it."""
    heavy = ("dot_general", "conv_general_dilated")
    return (e for e in equations(jaxpr) if e.primitive.name in heavy)


def loops(jaxpr):
    """The scans of a jaxpr over a sequence. Scans without xs are left out."""
    return [e for e in equations(jaxpr) if e.primitive.name == "scan" and _slices(e)]


def _slices(scan):
    pairs = zip(scan.invars, scan.params["jaxpr"].jaxpr.invars, strict=True)
    return any(whole.aval.ndim > part.aval.ndim for whole, part in pairs)


def gemms_in_loops(jaxpr):
    """The number of dots and convolutions in each loop over a sequence, in order."""
    return [len(list(gemms(e.params["jaxpr"].jaxpr))) for e in loops(jaxpr)]
