"""Schemes: how parameters start, after the defaults of several libraries.

A scheme has the forget bias of a library's LSTM. Two other cells of Flax start in
another way: their classes say how in `flax_scheme`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks

Initializer = Callable[..., jax.Array]
_init = jax.nn.initializers


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How the parameters of a cell of one size are drawn.

    Attributes:
        kernel: initializer of matrices that multiply the input, a function of (key,
            shape, dtype).
        recurrent_kernel: initializer of matrices that multiply the carry.
        bias: initializer of biases.
        gate_by_gate: whether the block of each gate is drawn separately.
        forget_bias: number added to the biases of forget gates.
        two_biases: whether a bias is the sum of two biases, both drawn by `bias`.
        longest: the longest time span of `chrono`, in steps; None without that rule.
    """

    kernel: Initializer
    recurrent_kernel: Initializer
    bias: Initializer = _init.zeros
    gate_by_gate: bool = True
    forget_bias: float = 0.0
    two_biases: bool = False
    longest: float | None = None

    def replaced(self, where, given):
        """The scheme with some initializers replaced by those in `given`.

        Args:
            where: name of the cell, for error messages.
            given: functions of (key, shape, dtype), by the names `kernel_init` and so
                on.

        Raises:
            TypeError: if a name is unknown, or a value is not a function.
            ValueError: if `chrono` and `bias_init` both want to draw the biases.
        """
        known = {
            f"{name}_init": name for name in ("kernel", "recurrent_kernel", "bias")
        }
        for name, value in given.items():
            if name not in known:
                raise TypeError(
                    f"{where}: init has no argument {name!r}, it takes scheme, "
                    f"{', '.join(known)}"
                )
            _checks.check_initializer(where, name, value)
        parts = {known[name]: value for name, value in given.items()}
        if "bias" in parts and self.longest is not None:
            raise ValueError(
                f"{where}: chrono and bias_init both draw the biases of gates; give "
                "one of them"
            )
        if "bias" in parts:
            parts["two_biases"] = False
        return dataclasses.replace(self, **parts)

    def finished(self, bias, name, table, key, keeps):
        """The bias after the rules for single gates, `two_biases` and `longest`.

        Args:
            bias: the array as drawn.
            name: name of the bias.
            table: the parameters. A gate in `recurrent_bias` has its second bias there.
            key: PRNG key.
            keeps: by gate, 1.0 if it keeps the carry, -1.0 if it lets new values in.
        """
        gates = table[name].gates or ("",)
        size = bias.shape[-1] // len(gates)
        second_key, span_key = jax.random.split(key)
        # The shift of a norm starts at a constant, and no library draws it.
        if self.two_biases and table[name].start == "bias":
            own = table["recurrent_bias"].gates if "recurrent_bias" in table else ()
            once = jnp.array([gate not in own for gate in gates], bias.dtype)
            second = self.bias(second_key, bias.shape, bias.dtype)
            bias += jnp.repeat(once, size) * second
        if self.longest is not None:
            span = jax.random.uniform(
                span_key, (size,), bias.dtype, 1.0, self.longest - 1
            )
            # A gate with this bias forgets over about `span` steps.
            signs = [keeps.get(gate, 0.0) for gate in gates]
            spread = jnp.kron(jnp.array(signs, bias.dtype), jnp.log(span))
            bias = jnp.where(jnp.repeat(jnp.array(signs) != 0, size), spread, bias)
        return bias


def _default(hidden_features):
    del hidden_features
    return Scheme(_init.lecun_normal(), _init.orthogonal(), forget_bias=1.0)


def _flax(hidden_features):
    del hidden_features
    return Scheme(_init.lecun_normal(), _init.orthogonal())


def flax(**parts: Any) -> Callable[[int], Scheme]:
    """Scheme "flax" with what one of Flax's cells has in place of its parts."""
    return lambda size: dataclasses.replace(_flax(size), **parts)


def _keras(hidden_features):
    del hidden_features
    return Scheme(
        _init.glorot_uniform(),
        _init.orthogonal(),
        gate_by_gate=False,
        forget_bias=1.0,
    )


def _torch(hidden_features):
    def uniform(key, shape, dtype):
        bound = hidden_features**-0.5
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return Scheme(uniform, uniform, uniform, two_biases=True)


SCHEMES = {"default": _default, "flax": _flax, "keras": _keras, "torch": _torch}


@dataclasses.dataclass(frozen=True)
class _Chrono:
    longest: float
    scheme: str

    def __call__(self, hidden_features):
        scheme = SCHEMES[self.scheme](hidden_features)
        return dataclasses.replace(scheme, longest=self.longest, forget_bias=0.0)


def chrono(longest: float, scheme: str = "default") -> Callable[[int], Scheme]:
    r"""Make a scheme whose gates remember over the time spans of the data.

    .. math::
        b_f = \log u, \quad b_i = -b_f, \quad u \sim \mathcal U(1, T_{max} - 1)

    A gate that keeps the carry (f of an LSTM, z of a GRU) gets the bias :math:`b_f`. A
    gate that lets new values in, if there is one (i of an LSTM, z of Haiku's GRU), gets
    :math:`b_i`, whatever an option of the cell such as `forget_bias` says. Everything
    else is drawn by `scheme`. `Cell.init` raises ValueError for a cell that has neither
    kind of gate, and if `bias_init` is given, too.

    Args:
        longest: :math:`T_{max}`, the longest time span, in steps; more than 2.
        scheme: one of the names of `SCHEMES`.

    Returns:
        The `scheme` argument of `Cell.init`.

    Raises:
        TypeError: if `longest` is not a number.
        ValueError: if `longest` is not more than 2 or not finite, or `scheme` is
            unknown.

    Example:
        >>> import jax, scanrnn
        >>> scheme = scanrnn.cells.chrono(longest=100)
        >>> params = scanrnn.cells.lstm().init(jax.random.key(0), 3, 5, scheme=scheme)
        >>> i, f, g, o = params["bias"].reshape(4, 5)
        >>> bool((i == -f).all()), bool((f > 0).all())
        (True, True)

    Reference:
        Tallec and Ollivier, "Can recurrent neural networks warp time?", 2018,
        arXiv:1804.11188.
    """
    longest = _checks.check_number("chrono", "longest", longest)
    if not 2 < longest < math.inf:
        raise ValueError(f"chrono: longest={longest}, want more than 2, and finite")
    _checks.check_option("chrono", "scheme", scheme, SCHEMES)
    return _Chrono(longest, scheme)


def find(where: str, scheme: Any) -> Callable[[int], Scheme]:
    """The function of H that makes a scheme, given by its name or as itself."""
    if callable(scheme):
        return cast(Callable[[int], Scheme], scheme)
    _checks.check_option(where, "scheme", scheme, SCHEMES)
    return SCHEMES[scheme]
