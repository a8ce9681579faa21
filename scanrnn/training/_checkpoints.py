"""Checkpoints: all that a run needs to go on as if it had never stopped."""

import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from scanrnn.training._files import writing


class Checkpoints:
    """The checkpoints of one run, in one folder; the newest two are kept.

    A checkpoint is a pytree of arrays (the state) and a JSON-able dict (the notes). It
    is written in the background, under another name, and renamed when complete: a
    process that is killed at any moment leaves the last complete one. Checksums of all
    arrays are kept with it; nothing is ever unpickled.

    Args:
        folder: Where they are; made if missing. Of several processes, one that all see.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from scanrnn.training import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder)
        ...     checkpoints.save(3, {"w": jnp.arange(2.0)}, {"position": 7})
        ...     checkpoints.latest(), checkpoints.notes()
        ...     checkpoints.state(like={"w": jnp.zeros(2)})["w"].tolist()
        (3, {'position': 7})
        [0.0, 1.0]
    """

    def __init__(self, folder: str | Path):
        """Opens the folder."""
        # Orbax fails late, and in the background, on a relative path.
        self.folder = Path(folder).absolute()
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=2,
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,
            ),
            item_names=("state", "notes"),
        )

    def latest(self) -> int | None:
        """Returns the step of the newest complete checkpoint, None if there is none."""
        self.wait()
        return self._manager.latest_step()

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Begins to save a checkpoint, once the one before it is complete.

        Args:
            step: Steps taken; nothing is done if that step is already saved.
            state: A pytree of arrays, PRNG keys included. It is copied: its memory may
                be given away at once.
            notes: A dict that JSON can hold.

        Raises:
            ValueError: If this or the one before it cannot be written.
        """
        if step == self.latest():
            return
        snapshot = jax.tree.map(jnp.copy, state)
        notes = {"notes": notes, "checksums": _checksums(snapshot)}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(snapshot), notes=ocp.args.JsonSave(notes)
        )
        with writing(self.folder):
            self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Returns when what is being saved is complete."""
        with writing(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and ends the threads that save."""
        self._manager.close()

    def notes(self) -> dict[str, Any]:
        """Reads the notes of the newest checkpoint.

        Returns:
            The dict that was saved.

        Raises:
            ValueError: If there is no checkpoint, or it cannot be read.
        """
        return self._read_notes()["notes"]

    def state(self, like: Any) -> Any:
        """Reads the state of the newest checkpoint.

        Args:
            like: A pytree of the same structure, shapes and types, which decides where
                the arrays are put.

        Returns:
            The state that was saved.

        Raises:
            ValueError: If there is no checkpoint, it cannot be read as that state, or
                its arrays are not those that were saved.
        """
        checksums = self._read_notes()["checksums"]
        # Without a target, optimizer states would come back as plain lists.
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        state = self._restore("state", ocp.args.StandardRestore(target))
        for name, checksum in _checksums(state).items():
            # What several processes saved in parts has none.
            if checksums.get(name, checksum) != checksum:
                raise self._unreadable(f"the bytes of {name} are not those saved")
        return state

    def clear(self) -> None:
        """Deletes every checkpoint of the folder."""
        self.wait()
        for step in self._manager.all_steps():
            self._manager.delete(step)

    def _read_notes(self):
        notes = self._restore("notes", ocp.args.JsonRestore())
        if not isinstance(notes, dict) or set(notes) != {"notes", "checksums"}:
            raise self._unreadable("it was not written by scanrnn.training")
        return notes

    def _restore(self, item: str, args: Any) -> Any:
        step = self.latest()
        if step is None:
            raise ValueError(f"no checkpoint in {self.folder}; train one first")
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(**{item: args})
            )
        # Which error a damaged file gives depends on which byte is damaged.
        except Exception as error:
            raise self._unreadable(str(error)) from error
        return restored[item]

    def _unreadable(self, why: str) -> ValueError:
        return ValueError(
            f"checkpoint {self.folder / str(self.latest())} cannot be read ({why}); "
            "delete that folder to go on from the checkpoint before it, or start "
            "again with --restart"
        )


def _checksums(tree: Any) -> dict[str, int]:
    """The checksum of every array that this process holds whole."""
    sums = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
            sums[jax.tree_util.keystr(path)] = zlib.crc32(data.data)
    return sums
