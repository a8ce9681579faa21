"""A first carry that is learned."""

import dataclasses

import jax
import jax.numpy as jnp

from scanrnn.cells import _wrapper
from scanrnn.cells._cell import Cell, advance


@dataclasses.dataclass(frozen=True)
class _LearnedCarry(_wrapper.Wrapper):
    name = "learned_carry"

    def __post_init__(self):
        super().__post_init__()
        fields = getattr(getattr(self.innermost, "carry_type", None), "_fields", ())
        if fields and not any(map(self._is_learned, fields)):
            raise ValueError(
                f"learned_carry: the fields {', '.join(fields)} have a scale that "
                "changes at every step, so none can be learned; give initial_carry="
            )

    def init(
        self, key, in_features, hidden_features, dtype=jnp.float32, **initializers
    ):
        params = self.inner.init(
            key, in_features, hidden_features, dtype, **initializers
        )
        # No batch axes, and spatial axes of size 1: all examples and all pixels share
        # the learned carry.
        places = (1,) * (self.num_feature_axes - 1)
        x = jax.ShapeDtypeStruct((*places, in_features), dtype)
        carry = jax.eval_shape(self.inner.initial_carry, params, x)
        leaves, at = jax.tree.leaves(carry), self._learned(carry)
        return params | {_name(i): jnp.zeros(leaves[i].shape, dtype) for i in at}

    def initial_carry(self, params, x, dtype=None):
        carry = super().initial_carry(params, x, dtype)
        leaves, tree = jax.tree.flatten(carry)
        for i in self._learned(carry):
            leaves[i] = _plus(leaves[i], params[_name(i)])
        return jax.tree.unflatten(tree, leaves)

    def inner_params(self, params):
        return {k: v for k, v in params.items() if not k.startswith("initial_carry_")}

    def step(self, params, carry, x, noise=None):
        return advance(self.inner, self.inner_params(params), carry, x, noise)

    def _learned(self, carry):
        """The places of the leaves that are learned."""
        leaves = jax.tree.leaves(carry)
        names = getattr(carry, "_fields", ())
        names = names if len(names) == len(leaves) else [""] * len(leaves)
        return [i for i, name in enumerate(names) if self._is_learned(name)]

    def _is_learned(self, field):
        # A normaliser that is learned may become zero, and the output infinite.
        return field not in getattr(self.innermost, "stabilised", ())


def _plus(zeros, learned):
    """The learned carry, broadcast to the batch."""
    axes = tuple(range(zeros.ndim - learned.ndim))
    return zeros + jnp.expand_dims(learned.astype(zeros.dtype), axes)


def _name(index):
    return f"initial_carry_{index}"


def learned_carry(cell: Cell) -> Cell:
    r"""Learn the carry before the first step; it starts at zeros.

    .. math::
        s_0 = \theta

    Params: those of the inner cell, and `initial_carry_0`, `initial_carry_1`, ..., one
    for each field of the carry, in its order: h and c for an LSTM. Each has the shape
    of its field without batch axes, such as `[H]`. For a convolutional cell they are
    `[1, ..., F]`, the same for every pixel. Of an sLSTM only h is learned: the other
    fields have a scale that changes at every step.

    Args:
        cell: any cell.

    Returns:
        A `Cell` with the carry of `cell`. Its `initial_carry` returns these parameters,
        the same for every example of a batch.

    Raises:
        TypeError: if `cell` is not a `Cell`.
        ValueError: if `cell` contains a learned carry already, or is an mLSTM, all
            of whose fields have such a scale.

    Example:
        >>> import jax, jax.numpy as jnp, scanrnn
        >>> cell = scanrnn.cells.learned_carry(scanrnn.cells.gru())
        >>> params = cell.init(jax.random.key(0), 3, 2)
        >>> params["initial_carry_0"] = jnp.array([1.0, 2.0])
        >>> cell.initial_carry(params, jnp.ones([1, 3])).h.tolist()
        [[1.0, 2.0]]

    Reference:
        Mozer, "A focused backpropagation algorithm for temporal pattern recognition",
        1989; Mohajerin and Waslander, "State initialization for recurrent neural
        network modeling of time-series data", 2017.
    """
    return _LearnedCarry(cell)
