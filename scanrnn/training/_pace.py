"""The number of steps of a run: as given, or as many as fit into its time."""

import statistics
import time

import jax
import jax.numpy as jnp
from rich.console import Console

from scanrnn.training._objective import set_steps
from scanrnn.training._processes import of_first
from scanrnn.training._run import Run

# If the time of a run is given: steps that are timed first, and the fewest to train.
_TIMED, _FEWEST = 20, 200


class Plan:
    """The number of steps of a run.

    If the options give a time and no steps, every `update` decides the number again.

    Args:
        run: The run.
        done: Steps that the run has already taken.
        begin: When the run began, in seconds of `time.perf_counter`, minus the seconds
            of earlier sessions.
    """

    def __init__(self, run: Run, done: int, begin: float):
        """Compiles and times a few steps, on a copy of the state."""
        self._run, self._done = run, done
        self._given = run.steps
        if done and run.notes.get("steps") == done:
            self._given = done  # it was stopped after its last step
        seconds = _time_steps(run, 3 if self._given else _TIMED)
        run.evaluate(run.state.params)  # compiles
        start = time.perf_counter()
        run.evaluate(run.state.params)
        evaluation = (time.perf_counter() - start) / run.config.evaluate_every
        self._pace = statistics.median(seconds[1:]) + evaluation
        # After the last step two more programs are compiled: sampling and lax.scan.
        self._end = begin + 60 * run.config.minutes - 2 * seconds[0]
        self._start = time.perf_counter()
        self.steps = 0
        self.update(done)

    def update(self, step: int) -> None:
        """Decides the number of steps of the run, and sets the optimizer's schedule.

        Args:
            step: Steps taken.
        """
        now = time.perf_counter()
        if step > self._done:
            self._pace = (now - self._start) / (step - self._done)
        fit_in = max(1, int((self._end - now) / self._pace))
        self.steps = self._given or of_first(max(_FEWEST, step + fit_in))
        self._run.state = set_steps(self._run.state, self.steps)

    def next(self, step: int) -> int:
        """Returns the step up to which to train before the next `update`.

        Args:
            step: Steps taken.

        Returns:
            The number of steps taken by then, counted from the start of the run.
        """
        every = self._run.config.evaluate_every
        following = (step // every + 1) * every
        return self.steps if self._given else min(following, self.steps)

    def announce(self, console: Console) -> None:
        """Prints how long the training will take.

        Args:
            console: Where to print.
        """
        about = "" if self._given else "about "
        left = _duration((self.steps - self._done) * self._pace)
        console.print(
            f"{about}{self.steps} steps of {self._run.tokens:,} tokens, "
            f"{1e3 * self._pace:.1f} ms each on this machine with evaluations: "
            f"training will take about {left}"
        )


def _time_steps(run, count):
    """Returns the seconds of each of `1 + count` steps. The first one compiles."""
    state, place = jax.tree.map(jnp.copy, run.state), run.batches.state()
    batch, seconds = next(run.batches), []
    run.batches.restore(place)
    for _ in range(1 + count):
        start = time.perf_counter()
        state, metrics = run.train_step(state, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
    return seconds


def _duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"
