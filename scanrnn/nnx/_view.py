"""What our modules with cells share: their options, and the switch of their noise."""

import inspect
from typing import Any

from scanrnn import layers


class Viewed:
    """A module with a cell: it refuses unknown options, and its noise can be off."""

    deterministic: bool

    def __new__(cls, *args: Any, **options: Any):
        """Refuse unknown options by name; those of the cell with the call to write."""
        known = inspect.signature(cls.__init__).parameters
        if all(one.kind is not one.VAR_KEYWORD for one in known.values()):
            cell = options.get("cell", args[0] if args else None)
            layers.check_options(cls.__name__, list(known)[1:], options, cell)
        return super().__new__(cls)

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `flax.nnx.view` calls.

        Args:
          deterministic: if True, leaves out dropout and all noise of the cell.
        """
        # Two spaces above: `flax.nnx.view_info` reads no other docstring.
        if deterministic is not None:
            self.deterministic = deterministic
