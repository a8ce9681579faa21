"""The method that `flax.nnx.view` calls on a module with noise."""


class Viewed:
    """A module whose noise can be switched off."""

    deterministic: bool

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `flax.nnx.view` calls.

        Args:
          deterministic: if True, leaves out dropout and all noise of the cell.
        """
        # Two spaces above: `flax.nnx.view_info` reads no other docstring.
        if deterministic is not None:
            self.deterministic = deterministic
