"""Measures a program as it is, and the same program through `scanrnn.accelerate`."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import scanrnn
from benchmarks import gate, measure
from benchmarks.cases import MODES, TOLERANCES
from benchmarks.contenders import Absent
from benchmarks.contenders._base import Contender, compile_, train_step
from benchmarks.programs import LAYER, ORIGINAL, OURS, find
from benchmarks.programs._base import Program, normal
from benchmarks.race import Race

LEARNING_RATE = 0.01


class Runner:
    """The forward pass and the training step of a program, compiled ahead of time."""

    def __init__(self, program: Program, apply):
        # Copies, because params are donated and JAX may share the memory of NumPy.
        copy = functools.partial(jax.tree.map, lambda a: jnp.array(a, copy=True))
        self._params, self._inputs = copy(program.params), copy(program.inputs)
        outs = jax.eval_shape(apply, self._params, self._inputs)
        self._target = jnp.array(normal(*outs.shape, scale=0.5, seed=1))
        train = train_step(apply, LEARNING_RATE)
        args = self._params, self._inputs
        self.compiled = {
            "forward": compile_(apply, *args),
            "train": compile_(train, *args, self._target, donate=0),
        }
        self._forward = self.compiled["forward"].call
        self._train = self.compiled["train"].call

    def forward(self):
        return self._forward(self._params, self._inputs).block_until_ready()

    def train(self):
        self._params, loss = self._train(self._params, self._inputs, self._target)
        return loss.block_until_ready()

    def ys(self) -> np.ndarray:
        return np.asarray(self.forward())

    def weights(self) -> dict[str, np.ndarray]:
        return _by_name(self._params)


def enter(name: str) -> Race | Absent:
    """The race of a program, or the reason why there is none."""
    try:
        program = find(name)
    except Absent as reason:
        return reason
    contenders = [
        contender(ORIGINAL, program.apply),
        contender(OURS, scanrnn.accelerate(program.apply)),
    ]
    if program.layer is not None:
        contenders.append(contender(LAYER, program.layer))
    return Race([(program, one) for one in contenders], MODES, ready=Checked())


def contender(name: str, apply: Callable) -> Contender:
    """One way to run a program: its forward function, or another of the same params."""
    return Contender(name, lambda _: None, lambda program: Runner(program, apply))


class Checked:
    """Gives the runner of each contender, and checks it against the first one."""

    def __init__(self, tolerance: float = TOLERANCES["float32"]):
        self._wanted, self._tolerance = None, tolerance

    def __call__(self, program, contender):
        runner = contender.setup(program)
        return runner, self.check(program, runner)

    def check(self, program, runner) -> gate.Verdict:
        """The verdict on a runner's answers."""
        weights = _by_name(program.params)
        got, slack = gate.answer(runner, weights, LEARNING_RATE)
        self._wanted = self._wanted or got
        return gate.compare(got, self._wanted, slack, self._tolerance)


def _by_name(params) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def record(name: str, race: Race | Absent) -> dict:
    """Everything that the report needs to know about a program."""
    about = {"section": "programs", "case": {"program": name}}
    if isinstance(race, Absent):
        absent = {"absent": str(race)}
        contenders = {ORIGINAL: absent, OURS: absent}
        return about | {"disturbance": 0.0, "settled": True, "contenders": contenders}
    about["case"]["sizes"] = race.entries[0].case.sizes
    contenders = {}
    for entry in race.entries:
        times = {mode: measure.timings(entry, mode) for mode in MODES if entry.runs}
        contenders[entry.contender.name] = {"gate": entry.verdict._asdict()} | times
    measured = {"disturbance": race.disturbance, "settled": race.settled}
    return about | measured | {"contenders": contenders}
