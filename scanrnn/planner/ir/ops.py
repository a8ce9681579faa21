"""What the planner knows about single primitives, in one place.

A primitive that is not named here is a black box: it is evaluated with `bind` and
differentiated with `jax.jvp`. It leaves the loop only if JAX can batch it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, jaxprs_in_params
from jax.sharding import AxisType

from scanrnn.planner.ir import batching, compat
from scanrnn.planner.ir.graph import inside
from scanrnn.planner.ir.slopes import FROM_OUTPUT as FROM_OUTPUT

# Contractions: the work that is worth moving, saving and counting.
CONVOLUTION = "conv_general_dilated"
HEAVY = frozenset({"dot_general", CONVOLUTION})
RANDOM_BITS = "random_bits"  # what draws random numbers
# The product of the planner, and a function with rules of ours. Primitives of users are
# matched by name, too, and one may be called `gemm`.
PRODUCT, RULED = "scanrnn_gemm", "scanrnn_ruled"
# JAX's product, and the planner's.
PRODUCTS = ("dot_general", PRODUCT)

# Sums of two operands.
ADDITIVE = frozenset({"add", "sub", "add_any"})

# Equations whose derivative reads no operands and no results (a `select_n` reads only
# which case was chosen).
LINEAR = ADDITIVE | frozenset(
    "neg convert_element_type copy reshape squeeze broadcast_in_dim"
    " transpose rev slice concatenate split pad reduce_sum select_n".split()
)

# Elementwise primitives without a parameter that depends on shapes.
POINTWISE = frozenset(
    {"add", "sub", "mul", "div", "neg", "max", "min", "tanh", "logistic", "exp"}
)


# Primitives that compute each element of their result from the same element of their
# operands. JAX adds some: in 0.12, `tanh` has the slope `one_minus_square`.
ELEMENTWISE = (ADDITIVE | POINTWISE | set(FROM_OUTPUT)) | frozenset(
    "abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp copy cos cosh eq"
    " convert_element_type erf erf_inv erfc exp2 expm1 floor ge gt integer_pow le log"
    " is_finite log1p log2 lt ne not one_minus_square or pow reduce_precision rem round"
    " select_n sign sin sinh square stop_gradient tan xor".split()
)

# Primitives that can certainly be batched; for all others JAX is asked.
_BATCHED = (HEAVY | ELEMENTWISE) | frozenset(
    "argmax broadcast_in_dim concatenate cumsum dynamic_slice gather iota"
    " pad reduce_max reduce_min reduce_sum reshape rev slice split squeeze"
    " transpose".split()
)

# Primitives that contain programs, and can be batched if these can.
_PROGRAMS = frozenset({"scan", "while", "cond", RULED})

# Names that start so draw random numbers. That commutes with `vmap` only for
# counter-based keys.
_RANDOM = ("random_", "threefry", "rng_")


def aval(atom) -> Any:
    """The type of a variable or constant. To JAX's type checker it has no shape."""
    return atom.aval


def alike(a, b) -> bool:
    """Whether two atoms have the same shape and dtype."""
    a, b = aval(a), aval(b)
    return (a.shape, a.dtype) == (b.shape, b.dtype)


def zeros(aval) -> jax.Array:
    """Zeros of a type, with its weak type, sharding and varying mesh axes."""
    sharding, extra = getattr(aval, "sharding", None), {}
    if sharding is not None and not sharding.mesh.empty:
        extra["out_sharding"] = sharding
    if getattr(aval, "weak_type", False) and aval.dtype == jnp.result_type(float):
        made = jnp.broadcast_to(0.0, aval.shape)
    else:
        made = jnp.zeros(aval.shape, aval.dtype, **extra)
    axes = compat.varying_axes(aval)
    return lax.pcast(made, axes, to="varying") if axes else made


def is_split(aval) -> bool:
    """Whether, by its type, devices hold parts of a value or different values."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    explicit = mesh is not None and AxisType.Explicit in mesh.axis_types
    return explicit or bool(compat.varying_axes(aval))


def is_weak(atom) -> bool:
    """Whether a value is weakly typed: it adopts other dtypes, as Python numbers do."""
    return getattr(aval(atom), "weak_type", False)


def is_heavy(eqn: JaxprEqn) -> bool:
    """Whether an equation is a contraction (GEMM or convolution).

    An outer product contracts nothing. Recomputing it is as cheap as reading it.
    """
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return len(contracted) > 0
    return eqn.primitive.name in HEAVY


def is_reduction(eqn: JaxprEqn) -> bool:
    """Whether an equation reduces over axes (by a sum, a maximum, ...), as norms do."""
    return eqn.primitive.name.startswith("reduce_") and "axes" in eqn.params


def has_subjaxpr(eqn: JaxprEqn) -> bool:
    """Whether an equation contains a program of its own (a loop, a `cond`, ...)."""
    return any(True for _ in jaxprs_in_params(eqn.params))


def is_movable(eqn: JaxprEqn) -> bool:
    """Whether an equation may run outside the loop, batched over time.

    Control flow may not: under `vmap` a `cond` runs both branches, and a `while` runs
    as long as the slowest step. A `custom_jvp_call` (`relu`, ...) may if all equations
    in it may.
    """
    name = eqn.primitive.name
    if eqn.effects:
        return False
    if name == "custom_jvp_call":
        own = (e for e in inside(eqn) if not has_subjaxpr(e))
        return not _loops(eqn) and all(map(is_movable, own)) and has_batched_rule(eqn)
    if name.startswith(_RANDOM):
        return not draws_by_step(eqn)
    return not has_subjaxpr(eqn) and can_be_batched(eqn)


def has_heavy_loop(eqn: JaxprEqn) -> bool:
    """Whether there is a loop with contractions in an equation."""
    loops = [e for e in (eqn, *inside(eqn)) if e.primitive.name in ("scan", "while")]
    own = (e for loop in loops for e in inside(loop))
    return any(is_heavy(e) or e.primitive.name == PRODUCT for e in own)


def is_cheap_over_time(eqn: JaxprEqn) -> bool:
    """Whether an equation for all steps at once certainly takes no more work."""
    return eqn.primitive.name in _BATCHED or eqn.primitive.name == "custom_jvp_call"


def is_costly(eqn: JaxprEqn) -> bool:
    """Whether an equation takes long: unknown, or with a logarithm or a loop in it."""
    slow = {"log", "log1p", "scan", "while"}
    within = any(e.primitive.name in slow for e in inside(eqn))
    return within or not is_cheap_over_time(eqn)


def draws_by_step(eqn: JaxprEqn) -> bool:
    """Whether an equation draws other random numbers under `vmap` than step by step."""
    if not eqn.primitive.name.startswith(_RANDOM):
        return False
    dtypes = {aval(v).dtype for v in (*eqn.invars, *eqn.outvars)}
    keys = [d for d in dtypes if jnp.issubdtype(d, jax.dtypes.prng_key)]
    return not keys or not all(map(compat.is_counter_based, keys))


def draws_apart(eqns: Iterable[JaxprEqn]) -> bool:
    """Whether equations, or programs in them, draw other random numbers if batched."""
    return any(draws_by_step(e) for eqn in eqns for e in (eqn, *inside(eqn)))


def can_be_batched(eqn: JaxprEqn) -> bool:
    """Whether `vmap` can batch an equation, with all programs in it, and its gradient.

    It can batch calls and control flow if it can batch what they contain.
    """
    name = eqn.primitive.name
    calls = compat.is_any_call(eqn) and not compat.has_rule(eqn)
    if calls or name in _PROGRAMS:
        own = (e for jaxpr in jaxprs_in_params(eqn.params) for e in jaxpr.eqns)
        return all(map(can_be_batched, own))
    return (name in _BATCHED and not _joins(eqn)) or batching.can_be_batched(eqn)


def has_batched_rule(eqn: JaxprEqn) -> bool:
    """Whether `vmap` can batch the derivative of an equation that reads the carry."""
    asks = eqn.primitive.name == "custom_jvp_call" or _joins(eqn)
    return not asks or batching.can_be_batched(eqn)


def _joins(eqn: JaxprEqn) -> bool:
    """Whether under `vmap` JAX joins axes of which devices may hold parts."""
    return eqn.primitive.name == CONVOLUTION and is_split(eqn.outvars[0].aval)


def _loops(eqn: JaxprEqn) -> bool:
    """Whether there is control flow inside an equation (a planned scan, say)."""
    return any(e.primitive.name in ("scan", "while", "cond") for e in inside(eqn))


def is_inexact(atom) -> bool:
    """Whether a variable is differentiable (floating or complex)."""
    return is_inexact_dtype(atom.aval.dtype)


def is_inexact_dtype(dtype) -> bool:
    """Whether values of a dtype have tangents."""
    return jnp.issubdtype(dtype, jnp.inexact)


def product(sizes: Iterable) -> int:
    """The product of some sizes, also numbers of steps; a symbolic one counts as 64."""
    return math.prod(d if isinstance(d, int) else 64 for d in sizes)


def size_of(aval) -> int:
    """The number of elements of a type."""
    return product(aval.shape)


def bytes_of(atom) -> int:
    """The number of bytes of a variable's value at one step."""
    dtype = atom.aval.dtype
    return size_of(atom.aval) * getattr(dtype, "itemsize", 8)


def bytes_in(atoms) -> int:
    """The number of bytes of the values of several variables at one step."""
    return sum(map(bytes_of, atoms))


def is_number(atom) -> bool:
    """Whether values of a variable are numbers; booleans and keys are not."""
    dtype = atom.aval.dtype
    return is_inexact_dtype(dtype) or jnp.issubdtype(dtype, jnp.integer)


def is_real(atom) -> bool:
    """Whether values of a variable are floating-point numbers, not complex ones."""
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)


def is_literal(atom) -> bool:
    """Whether an atom is a constant written into the program."""
    return isinstance(atom, Literal)


def splittable(eqn: JaxprEqn | None, axis: int, bits: dict) -> bool:
    """Whether to split a result along `axis` is to split a weight matrix."""
    if eqn is None or any(map(is_literal, eqn.invars)):
        return False
    constant = [bits[a] == 0 for a in eqn.invars]
    if sum(constant) != 1:
        return False
    side = constant.index(True)
    last = aval(eqn.outvars[0]).ndim - 1
    return is_matrix_of(eqn, side) and axis == (0 if side == 0 else last)


def is_matrix_of(eqn: JaxprEqn, side: int) -> bool:
    """Whether an operand of a dot is a matrix, contracted over one of its axes."""
    if eqn.primitive.name != "dot_general":
        return False
    (contract, batch) = eqn.params["dimension_numbers"]
    one_axis = len(contract[side]) == 1 and batch == ((), ())
    return one_axis and aval(eqn.invars[side]).ndim == 2


def contracted_axis(dot: JaxprEqn, side: int) -> int:
    """The axis over which an operand of a dot is contracted, the first of them."""
    return dot.params["dimension_numbers"][0][side][0]
