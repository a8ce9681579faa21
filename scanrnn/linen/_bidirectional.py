"""Two layers over the same sequence, one in each direction."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from scanrnn.layers import joined


class Bidirectional(nn.Module):
    r"""Run one layer forward and one backward, and merge their outputs.

    .. math::
        y_t = \mathrm{merge}(\overrightarrow{y}_t, \overleftarrow{y}_t)

    Like `flax.linen.Bidirectional`, for any two layers that take the arguments of
    `RNN`. These are passed on: lengths, masks and segments hold for both directions.

    Attributes:
        forward_rnn: the layer that runs forward.
        backward_rnn: the layer that runs backward. Give the same object twice to share
            weights.
        merge_fn: function of the two outputs; None to concatenate them.
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
            inputs: see `RNN`.
            initial_carry: the pair of carries before the first step, or None.
            init_key: draws the first carries of Flax cells, one for each direction.
            return_carry: overrides the attribute, and so does the next.
            time_major: see the class.
            reverse: not used, as in Flax: both directions are run.
            keep_order: likewise.
            **arguments: all other arguments of `RNN`, for both layers.

        Returns:
            The merged outputs; with `return_carry`, or `return_all_carries`, a pair:
            the pair of carries, and the outputs.

        Raises:
            TypeError: if `initial_carry` is not a pair.
            ValueError: see `RNN`.
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
