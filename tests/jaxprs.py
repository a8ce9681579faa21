"""Counting in jaxprs."""

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
    """The dots of a jaxpr, and of the jaxprs inside it."""
    return (e for e in equations(jaxpr) if e.primitive.name == "dot_general")


def gemms_in_loops(jaxpr):
    """How many dots each scan holds, in the order of the scans."""
    return [
        len(list(gemms(equation.params["jaxpr"].jaxpr)))
        for equation in equations(jaxpr)
        if equation.primitive.name == "scan"
    ]
