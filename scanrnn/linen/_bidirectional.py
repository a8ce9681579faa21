"""Two layers over the same sequence, one in each direction."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from scanrnn.layers import check_halves, joined


class Bidirectional(nn.Module):
    r"""Run one layer forward and one backward, and merge their outputs.

    .. math::
        y_t = \mathrm{merge}(\overrightarrow{y}_t, \overleftarrow{y}_t)

    It is like `flax.linen.Bidirectional`, for any two layers that take the arguments of
    `RNN`. The arguments of a call are passed to both layers, so lengths, masks and
    segments hold for both directions.

    Attributes:
        forward_rnn: the layer that runs forward.
        backward_rnn: the layer that runs backward. Give the same object twice to share
            weights.
        merge_fn: function of the two outputs, forward and backward; None to concatenate
            them on the last axis.
        time_major: the inputs are `[T, ..., D]` and not `[..., T, D]`.
        return_carry: also return the pair of last carries.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> nn = scanrnn.linen
        >>> rnn = nn.Bidirectional(nn.GRU(5), nn.GRU(5))
        >>> rnn.init_with_output(jax.random.key(0), jnp.ones([2, 7, 3]))[0].shape
        (2, 7, 10)

    Reference:
        Schuster and Paliwal, "Bidirectional recurrent neural networks", 1997.
    """

    forward_rnn: Any
    backward_rnn: Any
    merge_fn: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    time_major: bool = False
    return_carry: bool = False

    def __post_init__(self):
        """Raise TypeError for what is no layer, or for a wrong `merge_fn`."""
        check_halves(self)
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        init_key: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        **arguments: Any,
    ) -> Any:
        """Run both layers over a sequence.

        Args:
            inputs: `[..., T, D]`, or `[T, ..., D]` if time-major; see `RNN`.
            initial_carry: the pair of carries before the first step, (forward,
                backward); None for the cells' own.
            init_key: PRNG key for the first carries of Flax cells; each direction gets
                its own key, split from it.
            return_carry: overrides the attribute.
            time_major: overrides the attribute.
            reverse: ignored, as in Flax: both directions are run.
            keep_order: ignored, as in Flax.
            **arguments: all other arguments of a call of `RNN`, for both layers.

        Returns:
            The merged outputs, `[..., T, 2H]` if they are concatenated. With
            `return_carry` or `return_all_carries`, a pair: the pair of carries, and the
            outputs.

        Raises:
            TypeError: if `initial_carry` is not a pair; and as `RNN` does.
            ValueError: as `RNN` does.
        """
        del reverse, keep_order
        keys = (None, None) if init_key is None else jax.random.split(init_key)
        return joined(
            self,
            inputs,
            initial_carry,
            self.return_carry if return_carry is None else return_carry,
            self.time_major if time_major is None else time_major,
            arguments,
            [{"init_key": key} for key in keys],
        )
