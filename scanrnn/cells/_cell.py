"""What every cell is: three pure functions, frozen together with their options."""

import abc
from typing import Any

import jax
import jax.numpy as jnp


class Cell(abc.ABC):
    """One time step of a recurrent network, as a record of pure functions.

    A cell holds options and no arrays. It is hashable, and equal to every cell made
    with the same options, so it can be a static argument of `jax.jit`. To write your
    own, make a frozen dataclass that derives from `Cell` and gives it the three
    functions and `dtype`.

    Attributes:
        dtype: what the operands of the GEMMs are cast to, or None.
    """

    dtype: Any

    @abc.abstractmethod
    def init(
        self,
        key: jax.Array,
        in_features: int,
        hidden_features: int,
        dtype: Any = jnp.float32,
        **initializers: Any,
    ) -> dict[str, jax.Array]:
        """Draw the parameters.

        Args:
            key: PRNG key.
            in_features: D, the size of an input.
            hidden_features: H, the size of the carry.
            dtype: of the parameters.
            **initializers: what draws them, where not the default; see the cell.

        Returns:
            A plain dict of arrays.
        """

    @abc.abstractmethod
    def step(self, params: dict, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        """Advance one time step.

        Args:
            params: from `init`.
            carry: from `initial_carry` or the step before; fields `[..., H]`.
            x: `[..., D]`.

        Returns:
            The new carry, and the output `[..., H]`, both in the dtype of `carry`.
        """

    @abc.abstractmethod
    def initial_carry(self, params: dict, x: jax.Array, dtype: Any = None) -> Any:
        """The carry of zeros before the first step.

        It is derived from `x`, so that it is sharded as `x` is.

        Args:
            params: from `init`.
            x: one time step of the input, `[..., D]`; only its type is used.
            dtype: of the carry; None for float32, or wider where `x` or `params` are.

        Returns:
            A carry with fields `[..., H]`.
        """
