r"""Normalised recurrent cells, by dialect.

Five functions have the name "layer-norm LSTM". They differ in what they normalise (the
two products, or their sum), over which axes (all gates jointly, or gate by gate), in
their parameters, and in whether the memory is carried as it is or normalised.
"""

import dataclasses

import jax
import jax.numpy as jnp

from scanrnn.cells._table import Param


@dataclasses.dataclass(frozen=True)
class Norm:
    """One dialect of the norms.

    Attributes:
        apart: normalise W x and U h separately, and not the result of joining them.
        per_gate: normalise over the H features of each gate, and not over all gates.
        shift: whether a norm of the gates adds a bias after its gain.
        bias: whether the cell has its own bias too.
        memory: "seen" if only the output sees the normalised c, "carried" if it is also
            carried to the next step; None if c is not normalised.
        memory_shift: whether the norm of c adds a bias after its gain.
        epsilon: number added to the variance.
        centred: whether the mean is subtracted first; a root-mean-square norm if not.
    """

    apart: bool
    per_gate: bool = False
    shift: bool = False
    bias: bool = True
    memory: str | None = None
    memory_shift: bool = True
    epsilon: float = 1e-5
    centred: bool = True

    def table(self, gates, size):
        """Parameters of the norms of the gates, which have `size` features each."""
        names = ("norm_x", "norm_h") if self.apart else ("norm",)
        table = {}
        for name in names:
            table[name] = Param((len(gates) * size,), 1.0)
            if self.shift:
                table[f"{name}_bias"] = Param((len(gates) * size,), 0.0, gates)
        return table

    def memory_table(self, size):
        """Parameters of the norm of the memory."""
        if self.memory is None:
            return {}
        shift = {"norm_c_bias": Param((size,), 0.0)} if self.memory_shift else {}
        return {"norm_c": Param((size,), 1.0), **shift}

    def products(self, p, wx, uh, size):
        """W x and U h, each normalised if the dialect does so."""
        if not self.apart:
            return wx, uh
        return self._norm(p, "norm_x", wx, size), self._norm(p, "norm_h", uh, size)

    def joined(self, p, a, size, part):
        """The result of joining W x and U h, normalised if the dialect does so."""
        return a if self.apart else self._norm(p, "norm", a, size, part)

    def remembered(self, p, c):
        """The memory that is carried, and the memory that the output sees."""
        if self.memory is None:
            return c, c
        seen = self._norm(p, "norm_c", c, c.shape[-1])
        return (c if self.memory == "seen" else seen), seen

    def _norm(self, p, name, a, size, part=slice(None)):
        if self.per_gate and a.shape[-1] != size:
            gates = (*a.shape[:-1], a.shape[-1] // size, size)
            normal = self._normal(a.reshape(gates)).reshape(a.shape)
        else:
            normal = self._normal(a)
        normal = p[name][..., part] * normal
        shift = f"{name}_bias"
        return normal + p[shift][..., part] if shift in p else normal

    def _normal(self, a):
        """`a`, scaled to unit variance over the last axis."""
        if self.centred:
            a = a - jnp.mean(a, axis=-1, keepdims=True)
        variance = jnp.mean(a * a, axis=-1, keepdims=True)
        return a * jax.lax.rsqrt(variance + self.epsilon)


class _NoNorm:
    """The methods of `Norm` for a cell without a norm."""

    apart, per_gate, bias, memory = True, True, True, None

    def table(self, gates, size):
        del gates, size
        return {}

    def memory_table(self, size):
        del size
        return {}

    def products(self, p, wx, uh, size):
        del p, size
        return wx, uh

    def joined(self, p, a, size, part):
        del p, size, part
        return a

    def remembered(self, p, c):
        del p
        return c, c


NORMS = {
    None: _NoNorm(),
    "ba2016": Norm(apart=True, memory="seen"),
    "fastrnns": Norm(apart=True, shift=True, bias=False, memory="carried"),
    "tfa": Norm(apart=True, shift=True, memory="carried", epsilon=1e-3),
    "tf": Norm(
        apart=False,
        per_gate=True,
        shift=True,
        bias=False,
        memory="carried",
        epsilon=1e-12,
    ),
    "praxis": Norm(apart=False, per_gate=True, epsilon=1e-8),
    "rms": Norm(
        apart=True, memory="seen", memory_shift=False, epsilon=1e-6, centred=False
    ),
}
