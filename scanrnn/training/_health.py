"""Probes of recurrent steps: saturation, gradients through time, spectral radii."""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scanrnn.planner.ir import compat

Step = Callable[[Any, Any], tuple[Any, Any]]

# The range of the outputs of each squashing primitive. They saturate at its ends.
_RANGES = {"logistic": (0.0, 1.0), "tanh": (-1.0, 1.0)}


class Health(NamedTuple):
    """What a probe measures in one layer, over T time steps and N activations.

    Attributes:
        names: The activations of the time step, sorted by name: "logistic 1",
            "tanh 1", ... The number is the order in which the step computes the
            activations of one kind.
        low: Share of values in the lowest 5% of an activation's range, `[T, N]`.
        high: Share of values in the highest 5%, `[T, N]`.
        grad_norms: L2 norm of the gradient of the loss with respect to the carry before
            every time step, over batch and features, `[T]`.
        radii: Spectral radius of the recurrent matrix of every gate; empty if the
            parameters were not given.
        gates: The name or number of the gate of every radius.
    """

    names: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    grad_norms: np.ndarray
    radii: np.ndarray
    gates: tuple[str, ...] = ()

    @property
    def saturated(self) -> np.ndarray:
        """Share of saturated values of each activation, over all time steps, `[N]`."""
        return np.mean(self.low + self.high, axis=0)


def probe(
    steps: Sequence[Step],
    carries: Sequence[Any],
    xs: Any,
    loss: Callable[[Any], jax.Array],
    params: Sequence[Any] = (),
    gates: Sequence[Sequence[str]] = (),
) -> list[Health]:
    r"""Measures gradients and saturation in recurrent layers over a sequence.

    The probe computes the norm :math:`\|\partial L / \partial s_{t-1}\|_2` of the
    gradient of the loss :math:`L` with respect to the carry :math:`s_{t-1}`. The
    gradient goes through all later time steps and all layers above. If the norm falls
    towards the first time step, gradients vanish. If it rises, they explode.

    Args:
        steps: The time step of every layer, `step(carry, x) -> (carry, y)`. The outputs
            of a layer are the inputs of the layer above.
        carries: The first carry of every layer.
        xs: The inputs of the first layer, `[T, ...]`.
        loss: A function of the outputs of the last layer. It returns a scalar.
        params: The parameters of every layer. Spectral radii are computed for the
            matrices named `recurrent_kernel`. Empty for no spectral radii.
        gates: The names of the gates of every layer, as in `cell.gates`. Empty to
            number the gates.

    Returns:
        One `Health` for each layer.

    Example:
        >>> import functools, jax, jax.numpy as jnp, scanrnn
        >>> from scanrnn.training import probe
        >>> cell = scanrnn.cells.lstm()
        >>> params = cell.init(jax.random.key(0), 3, 5)
        >>> xs = jnp.ones([7, 2, 3])
        >>> step = functools.partial(cell.step, params)
        >>> carry = cell.initial_carry(params, xs[0])
        >>> health, = probe([step], [carry], xs, jnp.sum, [params], [cell.gates])
        >>> health.grad_norms.shape, health.names
        ((7,), ('logistic 1', 'logistic 2', 'logistic 3', 'tanh 1', 'tanh 2'))
        >>> health.gates
        ('i', 'f', 'g', 'o')

    Reference:
        Karpathy, Johnson, Fei-Fei, "Visualizing and understanding recurrent networks",
        2015, arXiv:1506.02078. Pascanu, Mikolov, Bengio, "On the difficulty of training
        recurrent neural networks", 2013, arXiv:1211.5063.
    """
    length = len(jax.tree.leaves(xs)[0])
    names: list[tuple[str, ...]] = []

    def run(taps, xs):
        names.clear()
        shares = []
        for step, carry, tap in zip(steps, carries, taps, strict=True):
            layer = _Watched(step)
            _, (xs, share) = jax.lax.scan(layer, carry, (xs, tap))
            names.append(layer.names)
            shares.append(share)
        return loss(xs), shares

    def look(xs):
        taps = jax.tree.map(lambda a: _tap(a, length), carries)
        return jax.grad(run, has_aux=True)(list(taps), xs)

    grads, shares = jax.jit(look)(xs)
    found = []
    for number, (grad, (low, high)) in enumerate(zip(grads, shares, strict=True)):
        rows = [np.asarray(a, np.float64) for a in jax.tree.leaves(grad)]
        squares = [np.sum(a.reshape(length, -1) ** 2, axis=1) for a in rows]
        weights, names_of = (s[number] if s else () for s in (params, gates))
        radii = _radii(weights, tuple(names_of))
        found.append(
            Health(
                names=names[number],
                low=np.asarray(low),
                high=np.asarray(high),
                grad_norms=np.sqrt(sum(squares)),
                radii=np.array([radius for _, radius in radii]),
                gates=tuple(gate for gate, _ in radii),
            )
        )
    return found


def _tap(array, length):
    """Zeros to add to a leaf of the carry at each step; None for a counter, say."""
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.zeros((length, *array.shape), array.dtype)
    return None


class _Watched:
    """A step that adds a tap to its carry, and also returns shares of saturated values.

    The taps are zeros. The gradient with respect to a tap is that of the carry.
    """

    def __init__(self, step):
        self._step, self.names = step, ()

    def __call__(self, carry, inputs):
        x, tap = inputs
        leaves, tree = jax.tree.flatten(carry)
        taps = tree.flatten_up_to(tap)
        added = [a if t is None else a + t for a, t in zip(leaves, taps, strict=True)]
        carry = tree.unflatten(added)
        closed, shape = jax.make_jaxpr(self._step, return_shape=True)(carry, x)
        seen: list[tuple[str, jax.Array]] = []
        outs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves((carry, x)), seen)
        carry, y = jax.tree.unflatten(jax.tree.structure(shape), outs)
        counts = dict.fromkeys(_RANGES, 0)
        names, low, high = [], [], []
        for kind, values in seen:
            counts[kind] += 1
            names.append(f"{kind} {counts[kind]}")
            least, most = _RANGES[kind]
            margin = (most - least) / 20
            low.append(jnp.mean(values < least + margin))
            high.append(jnp.mean(values > most - margin))
        order = sorted(range(len(names)), key=lambda i: names[i])
        self.names = tuple(names[i] for i in order)
        pick = functools.partial(_stack, order)
        return carry, (y, jax.lax.stop_gradient((pick(low), pick(high))))


def _stack(order, values):
    return jnp.stack([values[i] for i in order]) if order else jnp.zeros([0])


def _evaluate(jaxpr, consts, args, seen):
    """Evaluates a jaxpr, and appends outputs of squashing primitives to `seen`."""
    values: dict[Any, Any] = {}

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        given, name = [read(v) for v in equation.invars], equation.primitive.name
        calls, ruled = compat.is_any_call(equation), compat.has_rule(equation)
        if calls:
            inner = compat.program(equation)
            closed = isinstance(inner, core.ClosedJaxpr)
            body = inner.jaxpr if closed else inner
            # These only show saturation: the gradient of a function with a rule of its
            # own is that of the rule.
            args = jax.lax.stop_gradient(given) if ruled else given
            outs = _evaluate(body, inner.consts if closed else (), args, seen)
        if ruled or not calls:
            outs = compat.bind(equation, given)
        if name in _RANGES:
            seen.append((name, outs[0]))
        values.update(zip(equation.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def spectral_radii(params: Any) -> np.ndarray:
    """Computes the spectral radii of recurrent matrices, gate by gate.

    Args:
        params: A pytree. Each leaf named `recurrent_kernel`, `[..., H, G*H]`, is cut
            into G square matrices. Those beside a `projection` `[H, P]` with P < H are
            left out: the matrices of their gates are not square.

    Returns:
        The largest absolute eigenvalue of each matrix, `[N]`.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import spectral_radii
        >>> spectral_radii({"recurrent_kernel": np.diag([0.5, -2.0])})
        array([2.])
    """
    return np.array([radius for _, radius in _radii(params, ())])


def _radii(params: Any, names: tuple[str, ...]) -> list[tuple[str, float]]:
    """Returns the gate and the spectral radius of every recurrent square matrix."""
    radii = []
    leaves = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    projected = {
        text.partition("projection")[0]
        for text, leaf in leaves.items()
        if "projection" in text and leaf.shape[-1] < leaf.shape[-2]
    }
    for text, leaf in leaves.items():
        found = re.search(r"recurrent_kernel_?(\w*)", text)
        kernel = np.asarray(leaf, np.float64)
        if not found or kernel.ndim < 2 or kernel.shape[-1] % kernel.shape[-2]:
            continue
        if text[: found.start()] in projected:
            continue
        size, columns = kernel.shape[-2:]
        count = columns // size
        # A kernel of one matrix may name its gate: `recurrent_kernel_NAME`.
        gates = (found[1],) if found[1] and count == 1 else names
        if len(gates) != count:
            gates = tuple(map(str, range(count)))
        squares = np.moveaxis(kernel.reshape(-1, size, count, size), 2, 1)
        for square, gate in zip(
            squares.reshape(-1, size, size), itertools.cycle(gates), strict=False
        ):
            radii.append((gate, float(np.abs(np.linalg.eigvals(square)).max())))
    return radii
