"""Arrays of their own for gates that a step takes out of one array by `split`.

XLA for CPU is about five times slower on a loop body that takes several slices of
one scanned array than on separate arrays. So what stands above a `split` runs once
per piece. Before the loop that is `x @ W_i` instead of a slice of `x @ W`. In the
loop it is a rule of evaluation, not a change of the step: each piece of a scanned
array is read from where the whole sequence lies. The derivative stays that of the
unsplit step, with one cotangent array for all gates of a contraction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Set

from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.planner import ops
from scanrnn.planner.classify import bits_of
from scanrnn.planner.graph import CARRY, TIME, WEIGHTS, Env, Graph, eval_eqn, retrace
from scanrnn.planner.rewrite import is_sharded


def push_splits(graph: Graph) -> tuple[Graph, list]:
    """`split(x @ W + b)` becomes `x @ W_i + b_i`."""
    bits, producers, consumers = graph.depends(), graph.producers(), graph.consumers()
    trees = {}
    for eqn in graph.eqns:
        if _divides(eqn) and bits_of(eqn, bits) == TIME:
            axis = eqn.params["axis"]
            trees[eqn] = _tree(
                eqn, graph, lambda v, i=axis: ops.splittable(producers.get(v), i, bits)
            )

    def rule(eqn, env):
        if eqn not in trees:
            return None
        users = {eqn, *trees[eqn]}

        def leaf(v):
            made = producers.get(v)
            if ops.splittable(made, eqn.params["axis"], bits):
                if set(consumers[v]) <= users:
                    return _split_weights(made, bits, eqn.params["sizes"], env)
            return _split(eqn, env.read(v))

        return _in_pieces(eqn, trees[eqn], producers, env, leaf)

    return retrace(graph, rule)


def _split_weights(eqn, bits, sizes, env) -> list:
    side = 0 if bits[eqn.invars[0]] == WEIGHTS else 1
    (contract, _) = eqn.params["dimension_numbers"]
    weights = lax.split(env.read(eqn.invars[side]), sizes, 1 - contract[side][0])
    data = env.read(eqn.invars[1 - side])
    pairs = [(w, data) if side == 0 else (data, w) for w in weights]
    return [eval_eqn(eqn, pair)[0] for pair in pairs]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Which splits of a loop run in pieces, and which of its xs are read so.

    Attributes:
      trees: by split, the pointwise equations above it that run once per piece.
      streams: time inputs that these read in pieces.
    """

    trees: Mapping[JaxprEqn, Set[JaxprEqn]]
    streams: tuple[Var, ...]

    @property
    def skipped(self) -> Set[JaxprEqn]:
        """Equations that run only in pieces."""
        return frozenset().union(*self.trees.values())


PLAIN = Layout({}, ())


def lay_out(loop: Graph) -> Layout:
    """Find the splits of recurrent values that have time inputs above them."""
    bits, xs = loop.depends(), set(loop.xs)
    trees, streams = {}, []
    for eqn in loop.eqns:
        if not _divides(eqn) or not bits_of(eqn, bits) & CARRY:
            continue
        axis = eqn.params["axis"]
        tree = _tree(eqn, loop, lambda v, i=axis: v in xs and not is_sharded(v, i))
        read = {a for e in tree for a in e.invars if _has_pieces(a, axis)} & xs
        if read:
            trees[eqn] = frozenset(tree)
            streams += [v for v in loop.xs if v in read]
    return Layout(trees, tuple(dict.fromkeys(streams)))


class LaidEnv(Env):
    """Values of one step, in pieces where a layout says so.

    `read(v)` gives the row of a time input whose value is not given, and
    `read(v, axis, start, size)` a piece of it.
    """

    def __init__(self, graph: Graph, layout: Layout, values: Mapping, read: Callable):
        """Start from known values."""
        super().__init__(graph.eqns, values)
        self._layout, self._skipped = layout, layout.skipped
        self._producers: dict = graph.producers()
        self._read = read
        # What is read on demand is known, too: nothing need be run for it.
        self._streams = dict.fromkeys(v for v in graph.xs if v not in values)

    def __contains__(self, v) -> bool:
        """Whether the value of a variable can be had without an equation."""
        return super().__contains__(v) or v in self._streams

    def __iter__(self):
        """Every variable that can be had without an equation."""
        yield from dict.fromkeys((*super().__iter__(), *self._streams))

    def __missing__(self, v):
        """The whole of a time input that is otherwise read in pieces."""
        self[v] = self._read(v)
        return self[v]

    def run(self, eqns: Iterable[JaxprEqn]) -> None:
        """Evaluate equations in the given order, laid-out splits in pieces."""
        for eqn in eqns:
            if eqn in self._layout.trees:
                tree = self._layout.trees[eqn]
                parts = _in_pieces(eqn, tree, self._producers, self, self._leaf(eqn))
                self.update(zip(eqn.outvars, parts, strict=True))
            elif eqn not in self._skipped:
                super().run([eqn])

    def _leaf(self, split):
        axis, sizes = split.params["axis"], split.params["sizes"]

        def leaf(v):
            if v not in self._streams:
                return _split(split, self[v])
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            spans = zip(starts, sizes, strict=True)
            return [self._read(v, axis, start, size) for start, size in spans]

        return leaf


def _split(eqn, value) -> list:
    return list(lax.split(value, eqn.params["sizes"], eqn.params["axis"]))


def _in_pieces(split, tree, producers, env, leaf) -> list:
    """The outputs of a split, what stands above it run once per piece."""
    axis, count = split.params["axis"], len(split.params["sizes"])
    done: dict[Var, list] = {}

    def pieces(atom) -> list:
        if not _has_pieces(atom, axis):
            return [env.read(atom)] * count
        if atom not in done:
            made = producers.get(atom)
            if made in tree:
                operands = zip(*(pieces(a) for a in made.invars), strict=True)
                done[atom] = [eval_eqn(made, values)[0] for values in operands]
            else:
                done[atom] = leaf(atom)
        return done[atom]

    return pieces(split.invars[0])


def _divides(eqn) -> bool:
    """Whether an equation is a split, and not one of a single row."""
    split = eqn.primitive.name == "split"
    return split and _has_pieces(eqn.invars[0], eqn.params["axis"])


def _has_pieces(atom, axis) -> bool:
    shape = ops.aval(atom).shape
    return not isinstance(atom, Literal) and len(shape) > axis and shape[axis] != 1


def _tree(split, graph, is_source) -> set[JaxprEqn]:
    """The pointwise equations between a split and the sources above it.

    An equation whose value is also read by others runs whole: per piece it would
    run twice.
    """
    producers, consumers = graph.producers(), graph.consumers()
    axis = split.params["axis"]
    tree: set[JaxprEqn] = set()
    known: dict[Var, bool] = {}

    def grows(atom) -> bool:
        """Whether a source stands at or above `atom`."""
        if not _has_pieces(atom, axis):
            return False
        if atom not in known:
            known[atom] = walk(atom)
        return known[atom]

    def walk(atom) -> bool:
        made, found = producers.get(atom), is_source(atom)
        if made is not None and made.primitive.name in ops.POINTWISE:
            # Every branch is walked: each adds its own part of the tree.
            found = any([grows(a) for a in made.invars]) or found
            if found:
                tree.add(made)
        return found

    grows(split.invars[0])
    while True:
        inside = {*tree, split}
        shared = {e for e in tree if not set(consumers[e.outvars[0]]) <= inside}
        if not shared:
            return tree
        tree -= shared
