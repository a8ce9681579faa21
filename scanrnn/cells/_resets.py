"""The base class of cells whose first gate resets the h that the candidate sees."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks
from scanrnn.cells._gated import GatedCell, split
from scanrnn.cells._table import Param


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResettingCell(GatedCell):
    """A gated cell whose last block is a candidate.

    The first gate resets the h that the candidate sees.

    Attributes:
        dialects: the names of the dialects. In the first, the reset comes after the
            product, r * (U h + b); in the others before it, U (r * h).
        dialect: the dialect of this cell.
    """

    dialects: ClassVar[tuple[str, ...]]

    dialect: str

    def __post_init__(self):
        """Refuse unknown dialects, and norms that the dialect cannot compute."""
        super().__post_init__()
        _checks.check_option(self.name, "dialect", self.dialect, self.dialects)
        after, before, *_ = self.dialects
        if self.resets_after and not self.normal.apart:
            raise ValueError(
                f"{self.name}: norm={self.norm!r} normalises W x + U h, but the "
                f"candidate of dialect={after!r} resets U h before it is added; use a "
                f"norm of the products such as 'ba2016', or dialect={before!r}"
            )
        if not self.resets_after and not self.normal.per_gate:
            raise ValueError(
                f"{self.name}: norm={self.norm!r} normalises U h over all gates "
                f"jointly, but with dialect={self.dialect!r} the candidate's part is "
                "known only after its gate; use a norm per gate such as 'praxis', or "
                f"dialect={after!r}"
            )

    @property
    def resets_after(self):
        """Whether the reset comes after the product."""
        return self.dialect == self.dialects[0]

    def table(self, in_features, hidden_features):
        """The parameters; with the reset after the product, one more bias."""
        table = super().table(in_features, hidden_features)
        if self.resets_after and self.has_bias:
            bias = Param((hidden_features,), "bias", self.gates[-1:])
            table["recurrent_bias"] = bias
        return table

    def gates_and_candidate(self, p, carry, x, noise):
        """All gates, and the candidate, which is the last."""
        num_gates = len(self.gates) - 1
        where = num_gates * carry.h.shape[-1]  # the candidate begins
        if self.resets_after:
            wx, uh = self.products(p, x, carry.h, noise)
            uh, uh_n = jnp.split(uh, [where], axis=-1)
        else:
            wx = p.dot(x, "kernel")
            uh, uh_n = self.recurrent(p, carry.h, noise, 0, num_gates), None
        wx, wx_n = jnp.split(wx, [where], axis=-1)
        gates = split(jax.nn.sigmoid(self.join(p, wx, uh, 0, num_gates)), num_gates)
        if uh_n is None:
            uh_n = self.recurrent(p, gates[0] * p.wide(carry.h), noise, num_gates)
        else:
            uh_n = gates[0] * p.biased(uh_n, "recurrent_bias")
        return *gates, jnp.tanh(self.join(p, wx_n, uh_n, num_gates))
