"""Weight drop: some recurrent weights are zero for a whole sequence."""

import dataclasses

import jax
import jax.numpy as jnp

from scanrnn.cells import _noise, _precision, _wrapper
from scanrnn.cells._cell import Cell, Noise, advance


@dataclasses.dataclass(frozen=True)
class _WeightDrop(_wrapper.Wrapper):
    name = "weight_drop"

    rate: float = 0.0
    names: tuple[str, ...] = ("recurrent_kernel",)

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        params = super().init(key, in_features, hidden_features, dtype, **initializers)
        self._check(params)
        return params

    def own_noise(self, key, params, xs):
        del xs
        self._check(params)
        masks = {}
        for name in self.names if self.rate else ():
            key, own_key = jax.random.split(key)
            kernel = params[name]
            dtype = _precision.widest(kernel.dtype)
            mask = _noise.dropout_mask(own_key, self.rate, kernel.shape, dtype)
            masks[f"weight_drop_{name}"] = mask
        return Noise(masks, {})

    def step(self, params, carry, x, noise=None):
        self._check(params)
        params, noise = dict(params), dict(noise or {})
        for name in self.names:
            mask = noise.pop(f"weight_drop_{name}", None)
            if mask is not None:
                kernel = params[name]
                params[name] = (kernel * mask).astype(kernel.dtype)
        return advance(self.inner, params, carry, x, noise)

    def _check(self, params):
        for name in self.names:
            if name not in params:
                raise ValueError(
                    f"weight_drop: the cell has no parameter {name!r}, want one of "
                    f"{sorted(params)}"
                )


def weight_drop(
    cell: Cell, rate: float, names: tuple[str, ...] = ("recurrent_kernel",)
) -> Cell:
    r"""Drop single recurrent weights, the same in every step of a sequence.

    .. math::
        U \leftarrow U \odot M / (1 - p), \quad M \sim \mathrm{Bernoulli}(1 - p)

    Without noise, in evaluation, no weight is dropped.

    Args:
        cell: any cell that has parameters of these names.
        rate: p, the probability with which a weight is dropped.
        names: names of the parameters whose elements are dropped.

    Returns:
        A `Cell` with the params and the carry of `cell`.

    Raises:
        TypeError: if `cell` is not a `Cell`, or `rate` is not a number.
        ValueError: if `rate` is not in [0, 1), `names` is empty, or `cell` contains a
            weight drop already; from `init`, if the cell has no such parameter.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.weight_drop(scanrnn.cells.lstm(), 0.5)
        >>> params = cell.init(jax.random.key(0), 3, 5)
        >>> noise = cell.noise(jax.random.key(1), params, jnp.ones([7, 2, 3]))
        >>> noise.fixed["weight_drop_recurrent_kernel"].shape
        (5, 20)

    Reference:
        Merity et al., "Regularizing and optimizing LSTM language models", 2017,
        arXiv:1708.02182.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names:
        raise ValueError("weight_drop: names is empty, so nothing would be dropped")
    return _WeightDrop(cell, _noise.check_rate("weight_drop", "rate", rate), names)
