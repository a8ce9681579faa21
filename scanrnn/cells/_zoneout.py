"""Zoneout: parts of the carry that stay as they were."""

import dataclasses

import jax
import jax.numpy as jnp

from scanrnn.cells import _noise, _placing, _precision, _wrapper
from scanrnn.cells._cell import Cell, Noise, advance


@dataclasses.dataclass(frozen=True)
class _Zoneout(_wrapper.Wrapper):
    name = "zoneout"

    rates: tuple[tuple[str, float], ...] = ()

    def __post_init__(self):
        super().__post_init__()
        for name, _ in self.rates:
            if name in getattr(self.innermost, "stabilised", ()):
                raise ValueError(
                    f"zoneout: the field {name!r} has a scale that changes at every "
                    "step, so an old value cannot be kept; zone out the h of an sLSTM, "
                    "or wrap the cell in scanrnn.cells.dropout"
                )

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        params = super().init(key, in_features, hidden_features, dtype, **initializers)
        x = jnp.zeros((*[1] * self.num_feature_axes, in_features), dtype)
        like = jax.eval_shape(self.inner.initial_carry, params, x)
        for name, _ in self.rates:
            self._field(like, name)
        return params

    def own_noise(self, key, params, xs):
        x = _noise.one_step(xs)
        like = jax.eval_shape(self.inner.initial_carry, params, x)
        keys = jax.random.split(key, len(self.rates))
        masks = {
            f"zoneout_{name}": jax.random.bernoulli(
                key, rate, (xs.shape[0], *self._field(like, name).shape)
            )
            for key, (name, rate) in zip(keys, self.rates, strict=True)
        }
        return Noise({}, masks)

    def step(self, params, carry, x, noise=None):
        noise = dict(noise or {})
        masks = {name: noise.pop(f"zoneout_{name}", None) for name, _ in self.rates}
        new, y = advance(self.inner, params, carry, x, noise)
        zoned = {}
        for name, rate in self.rates:
            before, after = self._field(carry, name), self._field(new, name)
            if masks[name] is not None:
                zoned[name] = _placing.where(masks[name], before, after)
            else:
                dtype = _precision.widest(before.dtype)
                mean = rate * before.astype(dtype) + (1 - rate) * after.astype(dtype)
                zoned[name] = mean.astype(before.dtype)
        new = new._replace(**zoned)
        return new, zoned.get(self.emits, y)

    def _field(self, carry, name):
        if name not in getattr(carry, "_fields", ()):
            raise ValueError(
                f"zoneout: the carry {type(carry).__name__} has no field {name!r}, "
                f"want one of {getattr(carry, '_fields', ())}"
            )
        return getattr(carry, name)


def zoneout(cell: Cell, **rates: float) -> Cell:
    r"""Keep each feature of the carry as it was, with some probability.

    .. math::
        h_t = m \odot h_{t-1} + (1 - m) \odot \tilde h_t, \quad
        m \sim \mathrm{Bernoulli}(p_h)

    where :math:`\tilde h_t` is the inner cell's new value. The same holds for every
    field of the carry that has a rate. Masks are drawn for each step. Without noise, in
    evaluation, :math:`p_h` replaces m. If the inner cell's output is its h, then the
    output is h after zoneout. In an LSTM, :math:`\tilde h_t` is computed from the
    memory before zoneout, as in the paper.

    Args:
        cell: any cell whose carry is a NamedTuple.
        **rates: probabilities by field, such as ``h=0.05, c=0.5``.

    Returns:
        A `Cell` with the params and the carry of `cell`.

    Raises:
        TypeError: if `cell` is not a `Cell`, or a rate is not a number.
        ValueError: if a rate is not in [0, 1), no rate is given, `cell` contains a
            zoneout already, or a field belongs to a stabiliser or is scaled by one (c,
            n, m of an sLSTM; C, n, m of an mLSTM); from `init`, `step` and `noise`, if
            the carry has no such field.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.zoneout(scanrnn.cells.lstm(), h=0.05, c=0.5)
        >>> params = cell.init(jax.random.key(0), 3, 5)
        >>> xs = jnp.ones([7, 2, 3])
        >>> noise = cell.noise(jax.random.key(1), params, xs)
        >>> noise.steps["zoneout_c"].shape
        (7, 2, 5)

    Reference:
        Krueger et al., "Zoneout: regularizing RNNs by randomly preserving hidden
        activations", 2016, arXiv:1606.01305.
    """
    if not rates:
        raise ValueError("zoneout: no rates, want some such as h=0.05, c=0.5")
    checked = (
        (name, _noise.check_rate("zoneout", name, rate)) for name, rate in rates.items()
    )
    return _Zoneout(cell, tuple(sorted(checked)))
