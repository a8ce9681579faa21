"""What every cell is: three pure functions, frozen together with their options."""

import abc
from typing import Any

import jax
import jax.numpy as jnp


class Cell(abc.ABC):
    """One time step of a recurrent network, as a record of pure functions.

    A cell holds options and no arrays. It is hashable, and equal to every cell made
    with the same options, so it can be a static argument of `jax.jit`. To write your
    own, derive a frozen dataclass from `Cell` and give it the three functions: it
    then runs in every layer, and under `scanrnn.scan`.

    Attributes:
        dtype: what the operands of the GEMMs are cast to, and the outputs of a layer;
            None for no cast.

    Example:
        >>> import dataclasses, jax, jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> @dataclasses.dataclass(frozen=True)
        ... class Leaky(scanrnn.cells.Cell):  # h' = leak * h + W x
        ...     leak: float = 0.9
        ...
        ...     def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        ...         shape = in_features, hidden_features
        ...         return {"kernel": jax.random.normal(key, shape, dtype)}
        ...
        ...     def initial_carry(self, params, x, dtype=None):
        ...         return jnp.zeros_like(x @ params["kernel"], dtype=dtype)
        ...
        ...     def step(self, params, carry, x):
        ...         carry = self.leak * carry + x @ params["kernel"]
        ...         return carry, carry
        >>> rnn = scanrnn.nnx.RNN(Leaky(), 3, 5, num_layers=2, rngs=nnx.Rngs(0))
        >>> rnn(jnp.ones([2, 7, 3])).shape
        (2, 7, 5)
    """

    dtype: Any = None

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
