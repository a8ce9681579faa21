"""Two layers over the same sequence, one in each direction."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from scanrnn.layers import check_halves, joined
from scanrnn.nnx import _rngs


class Bidirectional(nnx.Module):
    r"""Run one layer forward and one backward, and merge their outputs.

    .. math::
        y_t = \mathrm{merge}(\overrightarrow{y}_t, \overleftarrow{y}_t)

    It is like `flax.nnx.Bidirectional`, for any two layers that take the arguments of
    `RNN`. The arguments of a call are passed to both layers, so lengths, masks and
    segments hold for both directions. Every layer of `scanrnn.nnx` also has
    ``bidirectional=True``, which joins the directions after each of its stacked layers.

    Args:
        forward_rnn: the layer that runs forward.
        backward_rnn: the layer that runs backward. Give the same object twice to share
            weights.
        merge_fn: function of the two outputs, forward and backward; None to concatenate
            them on the last axis.
        time_major: the inputs are `[T, ..., D]` and not `[..., T, D]`.
        return_carry: also return the pair of last carries.
        rngs: accepted as in Flax, but not used. Give `rngs` to a call instead.

    Raises:
        TypeError: if one of the two is no layer, or `merge_fn` is no function.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> make = lambda: scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> rnn = scanrnn.nnx.Bidirectional(make(), make())
        >>> rnn(jnp.ones([2, 7, 3]), seq_lengths=jnp.array([7, 4])).shape
        (2, 7, 10)

    Reference:
        Schuster and Paliwal, "Bidirectional recurrent neural networks", 1997.
    """

    def __init__(
        self,
        forward_rnn: Any,
        backward_rnn: Any,
        *,
        merge_fn: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
        time_major: bool = False,
        return_carry: bool = False,
        rngs: nnx.Rngs | nnx.RngStream | bool | None = None,
    ):
        """Keep the two layers; see the class."""
        del rngs
        self.forward_rnn = forward_rnn
        self.backward_rnn = backward_rnn
        self.merge_fn = merge_fn
        self.time_major = time_major
        self.return_carry = return_carry
        check_halves(self)

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        **arguments: Any,
    ) -> Any:
        """Run both layers over a sequence.

        Args:
            inputs: `[..., T, D]`, or `[T, ..., D]` if time-major; see `RNN`.
            initial_carry: the pair of carries before the first step, (forward,
                backward); None for the cells' own.
            return_carry: overrides the constructor's argument.
            time_major: overrides the constructor's argument.
            reverse: ignored, as in Flax: both directions are run.
            keep_order: ignored, as in Flax.
            rngs: see `RNN`.
            **arguments: all other arguments of a call of `RNN`, for both layers.

        Returns:
            The merged outputs, `[..., T, 2H]` if they are concatenated. With
            `return_carry` or `return_all_carries`, a pair: the pair of carries, and the
            outputs.

        Raises:
            TypeError: if `rngs` has the wrong type, or `initial_carry` is not a pair;
                and as `RNN` does.
            ValueError: as `RNN` does.
        """
        del reverse, keep_order
        _rngs.check_rngs("Bidirectional", rngs)
        return joined(
            self,
            inputs,
            initial_carry,
            self.return_carry if return_carry is None else return_carry,
            self.time_major if time_major is None else time_major,
            {"rngs": rngs} | arguments,
        )
