"""The base class of cells: three pure functions, frozen together with their options."""

import abc
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks


class Noise(NamedTuple):
    """The random numbers that a cell needs for a sequence, drawn before its loop.

    Attributes:
        fixed: arrays that are the same in every step, by name.
        steps: arrays `[T, ...]`, by name: one row for each time step.
    """

    fixed: dict[str, jax.Array]
    steps: dict[str, jax.Array]


class Cell(abc.ABC):
    """One time step of a recurrent network, as a record of pure functions.

    A cell holds options and no arrays. It is hashable, and equal to every cell made
    with the same options, so it can be a static argument of `jax.jit`. To write your
    own, derive a frozen dataclass from `Cell` and write the three abstract functions.
    It then runs in every layer, and under `scanrnn.scan`.

    A cell that needs random numbers (dropout, zoneout) draws all of them before the
    loop, in `noise`. `step` takes the numbers of its time step as a fourth argument, a
    dict of arrays. Without that argument the cell is deterministic, as in evaluation.
    `prepare` draws the numbers and makes a step function that uses them.

    Attributes:
        dtype: the dtype to which the operands of GEMMs, and the outputs of a layer, are
            cast; None for no cast.
        emits: name of the field of the carry that is also the output; None if there is
            none.
        num_feature_axes: number of the last axes of x that are not batch axes: 1, plus
            the spatial axes of a convolution.

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
    emits: Any = None
    num_feature_axes: Any = 1

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
            dtype: the dtype of the parameters.
            **initializers: how the parameters are drawn. Every cell of this package
                takes `scheme`: a name in `scanrnn.cells.SCHEMES`, or the result of
                `scanrnn.cells.chrono`. `kernel_init`, `recurrent_kernel_init` and
                `bias_init`, functions of (key, shape, dtype), replace single parts of
                the scheme. The matrices of the gates are drawn one by one, except by
                the scheme "keras".

        Returns:
            The parameters, a plain dict of arrays.

        Raises:
            TypeError: if `key` is no PRNG key, a size is not an int, `dtype` is not a
                floating-point dtype of 16 bits or more, or an initializer is unknown or
                not a function.
            ValueError: if a size is less than 1, the sizes do not fit the options of
                the cell, or `scheme` is unknown.
        """

    @abc.abstractmethod
    def step(self, params: dict, carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        """Advance one time step.

        Args:
            params: from `init`.
            carry: from `initial_carry` or the step before. Its fields are `[..., H]`,
                unless the cell says otherwise.
            x: the input, `[..., D]`.

        Returns:
            The new carry, and the output `[..., H]`, both in the dtype of `carry`.

        Raises:
            TypeError: if `params` or `carry` has the wrong type, or an array the wrong
                dtype.
            ValueError: if `params` has other entries than `init` makes, or an array has
                the wrong shape.
        """

    @abc.abstractmethod
    def initial_carry(self, params: dict, x: jax.Array, dtype: Any = None) -> Any:
        """The carry before the first step: zeros, unless it is learned.

        The carry is derived from `x`, so it is sharded as `x` is.

        Args:
            params: from `init`.
            x: one time step of the input, `[..., D]`; its values are not used.
            dtype: the dtype of the carry; None for the dtype to which float32, `x` and
                `params` promote.

        Returns:
            A carry with fields `[..., H]`, unless the cell says otherwise.
        """

    def out_features(self, hidden_features: int) -> int:
        """The size of the last axis of the outputs, for a carry of `hidden_features`.

        Args:
            hidden_features: H.

        Returns:
            H, unless the cell projects its output.
        """
        return hidden_features

    def noise(self, key: jax.Array, params: dict, xs: jax.Array) -> Noise | None:
        """Draw all random numbers that a sequence needs.

        Args:
            key: PRNG key.
            params: from `init`.
            xs: the inputs, `[T, ..., D]`; their values are not used.

        Returns:
            A `Noise`; None if the cell needs none. With
            `Noise({}, {"mask": jax.random.bernoulli(key, 0.9, xs.shape)})`, a step
            finds its row as `noise["mask"]`.
        """
        del key, params, xs
        return None

    def prepare(
        self, params: dict, xs: jax.Array, key: jax.Array | None = None
    ) -> tuple[Callable, Any]:
        """Make the step function and the inputs of a scan over a sequence.

        Args:
            params: from `init`.
            xs: the inputs, `[T, ..., D]`.
            key: PRNG key for the random numbers of the cell, as in training; None for a
                deterministic cell, as in evaluation.

        Returns:
            The function `step(carry, x)`, and the xs to scan over, which are `xs`
            itself or the pair of `xs` and the noise of each step.

        Raises:
            TypeError: if `key` is not a PRNG key.

        Example:
            >>> import jax, jax.numpy as jnp, scanrnn
            >>> cell = scanrnn.cells.zoneout(scanrnn.cells.gru(), h=0.1)
            >>> params = cell.init(jax.random.key(0), 3, 5)
            >>> xs = jnp.ones([7, 2, 3])
            >>> step, inputs = cell.prepare(params, xs, jax.random.key(1))
            >>> carry = cell.initial_carry(params, xs[0])
            >>> scanrnn.scan(step, carry, inputs)[1].shape
            (7, 2, 5)
        """
        if key is not None:
            _checks.check_key("prepare", key)
        noise = None if key is None else drawn(self, key, params, xs)
        if noise is None:
            return functools.partial(self.step, params), xs

        def step(carry, inputs):
            x, row = inputs
            return advance(self, params, carry, x, noise.fixed | row)

        return step, (xs, noise.steps)


def drawn(cell, key, params, xs) -> Noise | None:
    """The noise of any cell, which may be a user's."""
    noise = cell.noise(key, params, xs)
    if not isinstance(noise, Noise | None):
        raise TypeError(
            f"{type(cell).__name__}.noise: got a {type(noise).__name__}, want "
            "scanrnn.cells.Noise(fixed, steps), two dicts: arrays that are the same in "
            "all steps, and arrays [T, ...] with a row for each step; or None"
        )
    return noise


def advance(cell, params, carry, x, noise):
    """Make one step of any cell; without noise the cell is given three arguments."""
    if noise:
        return cell.step(params, carry, x, noise)
    return cell.step(params, carry, x)


def param_types(cell: Cell, *args: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """The types of the parameters that `cell.init(key, *args)` draws, by name."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(lambda key: cell.init(key, *args), key)
