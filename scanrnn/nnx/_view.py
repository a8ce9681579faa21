"""What `flax.nnx.view` says to a module that can be noisy."""


class Viewed:
    """A module with noise that can be left out."""

    deterministic: bool

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `flax.nnx.view` calls.

        Args:
          deterministic: if True, leaves out dropout and all noise of the cell.
        """
        # Two spaces above: `flax.nnx.view_info` reads no other docstring.
        if deterministic is not None:
            self.deterministic = deterministic
