"""Dropout of the input and of the output of a cell."""

import dataclasses

import jax

from scanrnn.cells import _checks, _noise, _precision, _wrapper
from scanrnn.cells._cell import Cell, Noise, advance


@dataclasses.dataclass(frozen=True)
class _Dropout(_wrapper.Wrapper):
    name = "dropout"

    input: float = 0.0
    output: float = 0.0
    same_mask: bool = True

    def keeps_output(self):
        return not self.output

    def own_noise(self, key, params, xs):
        x = _noise.one_step(xs)
        first = self.inner.initial_carry
        ys = jax.eval_shape(
            lambda params, x: self.inner.step(params, first(params, x), x)[1],
            params,
            x,
        )
        masks = {}
        for name, like in (("input", x), ("output", ys)):
            key, own_key = jax.random.split(key)
            if rate := getattr(self, name):
                shape = like.shape if self.same_mask else (xs.shape[0], *like.shape)
                dtype = _precision.widest(like.dtype)
                mask = _noise.dropout_mask(own_key, rate, shape, dtype)
                masks[f"dropout_{name}"] = mask
        return Noise(masks, {}) if self.same_mask else Noise({}, masks)

    def step(self, params, carry, x, noise=None):
        noise = dict(noise or {})
        x = _masked(x, noise.pop("dropout_input", None))
        mask = noise.pop("dropout_output", None)
        new, y = advance(self.inner, params, carry, x, noise)
        return new, _masked(y, mask)


def _masked(a, mask):
    if mask is None:
        return a
    masked = a.astype(mask.dtype) * mask
    return masked.astype(a.dtype) if _checks.is_floating(a.dtype) else masked


def dropout(
    cell: Cell, *, input: float = 0.0, output: float = 0.0, same_mask: bool = True
) -> Cell:
    r"""Drop features of the input and of the output of a cell.

    .. math::
        y_t = m_y \odot \mathrm{cell}(m_x \odot x_t)

    An element of a mask is 0 with the given probability p, and 1 / (1 - p) otherwise,
    which keeps the mean. The mask is the same in every step (variational dropout); with
    ``same_mask=False`` each step has its own. The carry is not changed: dropout of h
    before the gates is the option `recurrent_dropout` of the inner cell. Without noise,
    in evaluation, nothing is dropped.

    Args:
        cell: any cell.
        input: probability for a feature of x.
        output: probability for a feature of y.
        same_mask: whether all steps share one mask.

    Returns:
        A `Cell` with the params and the carry of `cell`.

    Raises:
        TypeError: if `cell` is not a `Cell`, or a rate is not a number.
        ValueError: if a rate is not in [0, 1), or `cell` contains a dropout already.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.dropout(scanrnn.cells.gru(), input=0.5, output=0.2)
        >>> params = cell.init(jax.random.key(0), 3, 5)
        >>> noise = cell.noise(jax.random.key(1), params, jnp.ones([7, 2, 3]))
        >>> noise.fixed["dropout_input"].shape, noise.fixed["dropout_output"].shape
        ((2, 3), (2, 5))

    Reference:
        Gal and Ghahramani, "A theoretically grounded application of dropout in
        recurrent neural networks", 2016, arXiv:1512.05287.
    """
    return _Dropout(
        cell,
        input=_noise.check_rate("dropout", "input", input),
        output=_noise.check_rate("dropout", "output", output),
        same_mask=_checks.check_flag("dropout", "same_mask", same_mask),
    )
