"""Checkpoints: all that a run needs to continue as if it had never stopped."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from scanrnn.training._batch_checks import check_count
from scanrnn.training._checksums import of_arrays, of_notes
from scanrnn.training._complaints import without_late_complaints
from scanrnn.training._damaged import Damaged, Foreign, chosen, unreadable
from scanrnn.training._files import brief, retried, writing
from scanrnn.training._lock import FolderLock
from scanrnn.training._misfit import check_fits
from scanrnn.training._processes import largest
from scanrnn.training._saved import as_arrays, check_arrays, check_notes, copied

T = TypeVar("T")

# The name of the checksum of the notes. No array of a pytree has this name.
_NOTES = "notes"
# How many characters of an error of Orbax are shown.
_LONGEST = 200


class Checkpoints:
    """The checkpoints of one run, in one folder; the newest two are kept.

    A checkpoint is a pytree of arrays (the state) and a dict that JSON can hold (the
    notes). It is written in the background, and renamed when it is complete. So a
    process that is killed leaves its last complete checkpoint. It has checksums of
    arrays and notes. Reading never unpickles anything, and changes nothing, so a run
    that is still training can be read. The first write locks the folder, until `close`
    or until the process ends.

    Args:
        folder: The folder. If a run has several processes, all must see this folder.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from scanrnn.training import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Checkpoints(folder) as checkpoints:
        ...         checkpoints.save(3, {"w": jnp.arange(2.0)}, {"position": 7})
        ...         checkpoints.latest(), checkpoints.notes()
        ...         checkpoints.state(like={"w": jnp.zeros(2)})["w"].tolist()
        (3, {'position': 7})
        [0.0, 1.0]
    """

    def __init__(self, folder: str | Path):
        """Opens the folder for reading."""
        # Orbax fails late on a relative path.
        self.folder = Path(folder).absolute()
        self._lock, self._locked = FolderLock(self.folder), False
        self._opened: ocp.CheckpointManager | None = None

    def __enter__(self) -> "Checkpoints":
        """Returns itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Calls `close`."""
        self.close()

    def lock(self) -> None:
        """Locks the folder for this process, or for the processes of this run.

        Raises:
            ValueError: If another run has locked it, or it cannot be written.
        """
        if self._locked:
            return
        refused = None
        if jax.process_index() == 0:
            try:
                self._lock.take()
            except ValueError as error:
                refused = error
        if largest(refused is not None):
            raise refused or ValueError(
                f"out: {str(self.folder)!r} was refused to process 0, which says why"
            )
        if self._opened is not None:
            self._opened.close()
        self._locked = True
        # The lock makes sure that nobody is still writing what is half written.
        with writing(self.folder):
            self._opened = _open(
                self.folder, create=True, max_to_keep=2, cleanup_tmp_directories=True
            )

    @property
    def _manager(self) -> ocp.CheckpointManager:
        if self._opened is None:
            self._opened = _open(self.folder, create=False)
        return self._opened

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, the newest last."""
        return self._reading(lambda steps: steps)

    def latest(self) -> int | None:
        """Returns the step of the newest complete checkpoint, None if there is none."""
        return max(self.steps(), default=None)

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Starts to save a checkpoint, after the one before it is complete.

        Args:
            step: Steps taken. Nothing happens if the newest checkpoint is of this step.
            state: A pytree of arrays, PRNG keys included. It is copied at once.
            notes: A dict that JSON can hold.

        Raises:
            TypeError: If a leaf of `state` is no array, or `notes` is no dict that JSON
                can hold.
            ValueError: If another run has locked the folder, a checkpoint cannot be
                written, `step` is no integer of at least 0 or before the newest
                checkpoint, there is no array, one has no elements, or two have the same
                name.
        """
        step = check_count("step", step, least=0)
        check_arrays(state)
        check_notes(notes)
        self.lock()
        latest = self.latest()
        if step == latest:
            return
        if latest is not None and step < latest:
            raise ValueError(
                f"step: got {step}, but {self.folder} has a checkpoint of step "
                f"{latest}; delete it first by clear(after={step})"
            )
        snapshot = copied(state)
        checksums = of_arrays(snapshot) | {_NOTES: of_notes(notes)}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(snapshot),
            notes=ocp.args.JsonSave({"notes": notes, "checksums": checksums}),
        )
        with writing(self.folder):
            self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Waits until the checkpoint that is being saved is complete."""
        if self._locked:
            with writing(self.folder):
                self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save, ends its threads, and unlocks the folder."""
        try:
            if self._opened is not None:
                self._opened.close()
        finally:
            self._opened, self._locked = None, False
            self._lock.give_back()

    def notes(self, step: int | None = None) -> dict[str, Any]:
        """Reads the notes of a checkpoint.

        Args:
            step: Which checkpoint; None for the newest.

        Returns:
            The dict that was saved.

        Raises:
            ValueError: If there is no checkpoint, or it cannot be read.
        """
        return self._read(step, lambda step: self._read_notes(step)["notes"])

    def state(self, like: Any, step: int | None = None) -> Any:
        """Reads the state of a checkpoint.

        Args:
            like: A pytree of arrays with the same structure, shapes and dtypes. The
                restored arrays get its shardings; those of NumPy stay with NumPy.
            step: Which checkpoint; None for the newest.

        Returns:
            The state that was saved.

        Raises:
            ValueError: If there is no checkpoint, it does not fit `like`, or its arrays
                have changed since they were saved.
        """
        return self._read(step, lambda step: self._read_state(step, like))

    def load(
        self, like: Callable[[dict[str, Any]], Any], step: int | None = None
    ) -> tuple[dict[str, Any], Any]:
        """Reads notes and state of one checkpoint.

        If a run that is still training deletes the newest, the next one is read.

        Args:
            like: A function of the notes. It returns the argument `like` of `state`.
            step: Which checkpoint; None for the newest.

        Returns:
            The notes and the state.

        Raises:
            ValueError: As `state` does.
        """

        def read(step):
            notes = self._read_notes(step)["notes"]
            return notes, self._read_state(step, like(notes))

        return self._read(step, read)

    def clear(self, after: int = -1) -> None:
        """Deletes the checkpoints of all steps after a given one.

        Args:
            after: The given step; -1 deletes all checkpoints.

        Raises:
            ValueError: If another run has locked the folder, or a file cannot be
                deleted.
        """
        self.lock()
        # The newest first: if the process is killed, no later step than it is left.
        for step in reversed(self.steps()):
            if step > after:
                with writing(self.folder):
                    self._manager.delete(step)

    def _listed(self) -> list[int]:
        self.wait()
        if not self._locked:
            self._manager.reload()
        return sorted(self._manager.all_steps())

    def _reading(self, read: Callable[[list[int]], T]) -> T:
        """Calls `read` with all steps, and again if a file was deleted meanwhile."""
        return retried(lambda: read(self._listed()))

    def _read(self, step: int | None, read: Callable[[int], T]) -> T:
        """Reads a checkpoint; if the newest is replaced meanwhile, the one after it."""

        def attempt(steps):
            reading = chosen(self.folder, step, steps)
            try:
                return read(reading)
            except Damaged as error:
                steps = self._listed()
                if step is None and steps and steps[-1] != reading:
                    raise FileNotFoundError(f"{reading} was replaced") from error
                raise unreadable(self.folder, reading, error, steps) from None

        return self._reading(attempt)

    def _read_notes(self, step: int) -> dict[str, Any]:
        notes = self._restore(step, "notes", ocp.args.JsonRestore())
        if not isinstance(notes, dict) or set(notes) != {"notes", "checksums"}:
            raise Foreign("it was not written by scanrnn.training")
        checksum = of_notes(notes["notes"])
        if checksum != notes["checksums"].get(_NOTES, checksum):
            raise Damaged("the bytes of its notes are not those saved")
        return notes

    def _read_state(self, step: int, like: Any) -> Any:
        checksums = self._read_notes(step)["checksums"]
        # Without a target, optimizer states would come back as plain lists.
        like = as_arrays(like)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        try:
            with without_late_complaints():
                state = self._restore(step, "state", ocp.args.StandardRestore(target))
            for name, checksum in of_arrays(state).items():
                # An array that several processes saved in parts has no checksum.
                if checksums.get(name, checksum) != checksum:
                    raise Damaged(f"the bytes of {name} are not those saved")
        finally:  # Orbax knows the types only now
            check_fits(self._manager, step, like)
        return state

    def _restore(self, step: int, item: str, args: Any) -> Any:
        args = ocp.args.Composite(**{item: args})
        try:
            return self._manager.restore(step, args=args)[item]
        # The type of the error depends on which byte of the file is damaged.
        except Exception as error:
            raise Damaged(textwrap.shorten(brief(error), _LONGEST)) from error


def _open(folder: Path, **options: Any) -> ocp.CheckpointManager:
    chosen = ocp.CheckpointManagerOptions(enable_async_checkpointing=True, **options)
    return ocp.CheckpointManager(folder, options=chosen, item_names=("state", "notes"))
