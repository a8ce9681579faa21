"""Checkpoints: all that a run needs to go on as if it had never stopped."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """The checkpoints of one run, in one folder; the newest two are kept.

    A checkpoint is a pytree of arrays (the state) and a JSON-able dict (the notes). It
    is written under another name and renamed when complete, so a process that is killed
    while saving leaves the checkpoint before it.

    Args:
        folder: Where they are; made if missing.

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
                enable_async_checkpointing=False,
                cleanup_tmp_directories=True,
            ),
            item_names=("state", "notes"),
        )

    def latest(self) -> int | None:
        """Returns the step of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Saves a checkpoint and returns when it is complete.

        Args:
            step: Steps taken; nothing is done if that step is already saved.
            state: A pytree of arrays, PRNG keys included.
            notes: A dict that JSON can hold.
        """
        if step == self.latest():
            return
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state), notes=ocp.args.JsonSave(notes)
        )
        self._manager.save(step, args=items, force=True)
        self._manager.wait_until_finished()

    def notes(self) -> dict[str, Any]:
        """Reads the notes of the newest checkpoint.

        Returns:
            The dict that was saved.

        Raises:
            ValueError: If there is no checkpoint, or it cannot be read.
        """
        return self._restore("notes", ocp.args.JsonRestore())

    def state(self, like: Any) -> Any:
        """Reads the state of the newest checkpoint.

        Args:
            like: A pytree of the same structure, shapes and types, which decides where
                the arrays are put.

        Returns:
            The state that was saved.

        Raises:
            ValueError: If there is no checkpoint, or it cannot be read as that state.
        """
        # Without a target, optimizer states would come back as plain lists.
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return self._restore("state", ocp.args.StandardRestore(target))

    def clear(self) -> None:
        """Deletes every checkpoint of the folder."""
        for step in self._manager.all_steps():
            self._manager.delete(step)

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
            raise ValueError(
                f"checkpoint {self.folder / str(step)} cannot be read ({error}); "
                "delete that folder to go on from the checkpoint before it, or start "
                "again with --restart"
            ) from error
        return restored[item]
