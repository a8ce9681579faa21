"""The dtypes of a model: one policy for all of its layers."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.machines import Machine, machine_of

# `auto` as the dtype of `compute`, with or without `compute=` before it.
_AUTO = re.compile(r"(^\s*|,\s*|\bcompute\s*=\s*)auto(?=\s*(?:,|$))")
_TYPES = ("float16", "bfloat16", "float32", "float64")
_KINDS = ("params", "compute", "carry", "output")


@dataclasses.dataclass(frozen=True)
class Precision:
    """The dtypes of a model, as the dtype arguments of its layers.

    The optimizer updates `params`, so these are float32 or wider. If the model computes
    in half precision, they are the master weights, and are rounded where they are used.
    The largest number of float16 is 65504, and its gradients need loss scaling.
    bfloat16 needs none.

    Args:
        params: Dtype of the parameters, which the optimizer updates, and of its state.
        compute: Dtype of the operands of matrix products. The products are accumulated
            in float32 or wider.
        carry: Dtype of the carry.
        output: Dtype of the model's outputs. The loss is float32 or wider.
        layers: Names and policies of the layers that have a policy of their own.

    Raises:
        ValueError: If a dtype is not float16, bfloat16, float32 or float64, or `params`
            is half precision.

    Example:
        >>> from scanrnn.training import Precision
        >>> precision = Precision.parse("compute=bfloat16,readout.compute=float32")
        >>> precision.compute, precision.at("readout").compute
        (dtype(bfloat16), dtype('float32'))
        >>> precision.layer_options("rnn")["dtype"]
        dtype(bfloat16)
        >>> print(Precision.parse("float16"))
        params=float32,compute=float16,carry=float32,output=float32

    Reference:
        Micikevicius et al., "Mixed precision training", 2018, arXiv:1710.03740.
    """

    params: Any = jnp.float32
    compute: Any = jnp.float32
    carry: Any = jnp.float32
    output: Any = jnp.float32
    layers: tuple[tuple[str, "Precision"], ...] = ()

    def __post_init__(self) -> None:
        """Converts names to dtypes, and checks them."""
        for kind in _KINDS:
            dtype = _floating(kind, getattr(self, kind))
            object.__setattr__(self, kind, dtype)
        if self.params.itemsize < 4:
            raise ValueError(
                f"params: got {self.params}, in which most updates would round to "
                f"nothing; want float32, and compute={self.params} to compute in it"
            )

    @classmethod
    def parse(cls, text: str, machine: Machine | None = None) -> "Precision":
        """Reads a policy from text, as on a command line.

        Args:
            text: Pairs `kind=dtype` with commas between them. Kinds that are left out
                are float32. `layer.kind=dtype` is for one layer. A dtype alone is for
                `compute`. There, `auto` is bfloat16 if the machine multiplies at least
                as fast in it as in float32, else float32.
            machine: The machine that decides `auto`; None for the one where JAX
                computes by default.

        Returns:
            The policy.

        Raises:
            ValueError: If a kind or dtype is unknown or comes twice, or `params` half.

        Example:
            >>> from scanrnn.training import Precision
            >>> Precision.parse("bfloat16") == Precision(compute="bfloat16")
            True
        """
        own: dict[str, Any] = {}
        layers: dict[str, dict[str, Any]] = {}
        if _AUTO.search(text):
            text = settle(text, (machine or machine_of()).pays("bfloat16"))
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, separator, dtype = pair.partition("=")
            if not separator:
                name, dtype = "compute", str(_floating("precision", name, "auto, "))
            layer, _, kind = name.strip().rpartition(".")
            if kind not in _KINDS:
                raise ValueError(
                    f"precision: got {pair!r}, want kind=type with a kind of "
                    f"{', '.join(_KINDS)}, or layer.kind=type"
                )
            said = layers.setdefault(layer, {}) if layer else own
            if kind in said:
                raise ValueError(
                    f"precision: {text!r} says {kind} twice (a dtype alone is for "
                    "compute); write each once, such as compute=float16,carry=float32"
                )
            said[kind] = dtype.strip()
        policies = tuple((name, cls(**(own | kinds))) for name, kinds in layers.items())
        return cls(**own, layers=policies)

    def __str__(self) -> str:
        """Returns the policy as text that `parse` can read."""
        pairs = [f"{kind}={getattr(self, kind)}" for kind in _KINDS]
        for name, policy in self.layers:
            pairs += [f"{name}.{pair}" for pair in str(policy).split(",")]
        return ",".join(pairs)

    def at(self, layer: str) -> "Precision":
        """Returns the policy of a layer.

        Args:
            layer: The name of the layer.

        Returns:
            The layer's own policy if it has one, else this policy.
        """
        return dict(self.layers).get(layer, self)

    def check_layers(self, kinds: Mapping[str, Collection[str]]) -> None:
        """Checks that the layers with an own policy exist, and use what it sets.

        Args:
            kinds: By the name of each layer, the kinds of dtypes that it uses.

        Raises:
            ValueError: If a layer is not among them, or does not use a kind that its
                policy sets apart.

        Example:
            >>> from scanrnn.training import Precision
            >>> precision = Precision.parse("readout.carry=float64")
            >>> precision.check_layers({"readout": ["compute"]})
            Traceback (most recent call last):
                ...
            ValueError: precision: readout has no carry; it has compute
        """
        for name, own in self.layers:
            if name not in kinds:
                raise ValueError(
                    f"precision: there is no layer {name!r}; there are "
                    f"{', '.join(kinds)}"
                )
            for kind in _KINDS:
                apart = getattr(own, kind) != getattr(self, kind)
                if apart and kind not in kinds[name]:
                    raise ValueError(
                        f"precision: {name} has no {kind}; it has "
                        f"{', '.join(kinds[name])}"
                    )

    def layer_options(self, layer: str = "") -> dict[str, Any]:
        """Returns the dtype arguments of a layer of `scanrnn.nnx` or `scanrnn.linen`.

        Args:
            layer: The name of the layer.

        Returns:
            `dtype`, `param_dtype` and `carry_dtype`. Layers of Flax take only the first
            two.
        """
        own = self.at(layer)
        return {
            "dtype": own.compute,
            "param_dtype": own.params,
            "carry_dtype": own.carry,
        }

    @property
    def needs_scaling(self) -> bool:
        """Whether gradients pass through float16, where small numbers become zero."""
        policies = (self, *(policy for _, policy in self.layers))
        return any(
            getattr(policy, kind) == jnp.float16
            for policy in policies
            for kind in ("compute", "carry", "output")
        )

    def to_compute(self, tree: Any) -> Any:
        """Casts the floating-point leaves of a tree to `compute`.

        Use it for functions without a dtype argument: cast their weights and inputs
        with this method, and their outputs with `to_output`.

        Args:
            tree: Any pytree of arrays.

        Returns:
            The tree; other leaves do not change.

        Example:
            >>> import jax.numpy as jnp
            >>> from scanrnn.training import Precision
            >>> tree = {"w": jnp.ones(3), "n": jnp.int32(1)}
            >>> cast = Precision(compute="float16").to_compute(tree)
            >>> cast["w"].dtype, cast["n"].dtype
            (dtype('float16'), dtype('int32'))
        """
        return _cast(tree, self.compute)

    def to_output(self, tree: Any) -> Any:
        """Casts the floating-point leaves of a tree to `output`.

        Args:
            tree: Any pytree of arrays.

        Returns:
            The tree; other leaves do not change.
        """
        return _cast(tree, self.output)


def settle(text: str, half: bool) -> str:
    """Replaces `auto` by a dtype.

    Args:
        text: A policy, as `Precision.parse` reads it.
        half: Whether `auto` is bfloat16; else it is float32.

    Returns:
        The text without `auto`.

    Example:
        >>> settle("auto,carry=bfloat16", half=False)
        'float32,carry=bfloat16'
    """
    return _AUTO.sub(r"\g<1>" + ("bfloat16" if half else "float32"), text)


def explain(text: str, machine: Machine, chosen: str | None = None) -> str | None:
    """Explains what `auto` chooses, or warns of a dtype that is slower than float32.

    Args:
        text: A policy, as `Precision.parse` reads it.
        machine: The machine on which the model will run.
        chosen: The policy that the run has, without `auto`; None if there is no run.

    Returns:
        One line; None if there is nothing to say.

    Example:
        >>> from scanrnn.machines import MACHINES
        >>> explain("auto", MACHINES["h100"])
        'precision auto: bfloat16, whose products are 2 times as fast (h100)'
        >>> explain("float32", MACHINES["h100"])
    """
    slow = f"products take longer than in float32 on this machine ({machine.kind})"
    if _AUTO.search(text):
        if chosen not in (None, settle(text, machine.pays("bfloat16"))):
            return f"precision auto: {chosen}, with which this run was started"
        if not machine.pays("bfloat16"):
            return f"precision auto: float32, as in bfloat16 {slow}"
        ratio = machine.peaks["bfloat16"] / machine.peaks["float32"]
        gain = (
            f"{ratio:.2g} times as fast" if ratio > 1 else "as fast and half as large"
        )
        return f"precision auto: bfloat16, whose products are {gain} ({machine.kind})"
    policy = Precision.parse(text)
    types = [policy.compute, *(own.compute for _, own in policy.layers)]
    for dtype in types:
        if dtype.itemsize < 4 and not machine.pays(str(dtype)):
            return f"precision: in {dtype} {slow}; want auto or float32"
    return None


def _floating(kind, value, more=""):
    wanted = f"want {more}{', '.join(_TYPES[:-1])} or {_TYPES[-1]}"
    try:
        dtype = jnp.dtype(value)
    except TypeError:
        raise ValueError(f"{kind}: got {value!r}, {wanted}") from None
    if str(dtype) not in _TYPES:
        raise ValueError(f"{kind}: got {dtype}, {wanted}")
    return dtype


def _cast(tree, dtype):
    def cast(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, dtype) if floating else leaf

    return jax.tree.map(cast, tree)
