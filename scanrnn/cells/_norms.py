r"""Normalised recurrent cells, by dialect.

Five functions are called "layer-norm LSTM". They differ in what is normalised (the two
products apart, or their sum), over what (all gates jointly, or gate by gate), with what
parameters, and in whether the memory is carried raw or normalised.
"""

import dataclasses

import jax
import jax.numpy as jnp

from scanrnn.cells._table import Param


@dataclasses.dataclass(frozen=True)
class Norm:
    """One dialect.

    Attributes:
        apart: normalise W x and U h each for itself, not what they are joined to.
        per_gate: over the H features of a gate, not over all gates jointly.
        shift: a bias after the gain, beside the gain.
        bias: the bias of the cell is there, too.
        memory: what is normalised of c: "seen" if only the output sees it so,
            "carried" if the next step does, too; None for nothing.
        memory_shift: as `shift`, of the memory.
        epsilon: what is added to the variance.
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
        """Parameters of the gates, `size` features each."""
        names = ("norm_x", "norm_h") if self.apart else ("norm",)
        table = {}
        for name in names:
            table[name] = Param((len(gates) * size,), 1.0)
            if self.shift:
                table[f"{name}_bias"] = Param((len(gates) * size,), 0.0, gates)
        return table

    def memory_table(self, size):
        """Parameters of the memory."""
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
        """What W x and U h were joined to, normalised if the dialect does so."""
        return a if self.apart else self._norm(p, "norm", a, size, part)

    def remembered(self, p, c):
        """The memory as it is carried, and as the output sees it."""
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
        """Of unit variance over the last axis."""
        if self.centred:
            a = a - jnp.mean(a, axis=-1, keepdims=True)
        variance = jnp.mean(a * a, axis=-1, keepdims=True)
        return a * jax.lax.rsqrt(variance + self.epsilon)


class _NoNorm:
    """What a cell without a norm asks."""

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
