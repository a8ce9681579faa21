"""The fields of modules: errors for unknown ones, and how they are made hashable."""

import dataclasses
from typing import Any

from flax.core import FrozenDict

from scanrnn import layers


class Named:
    """A hashable module, whose error for an unknown field lists its fields."""

    def __new__(cls, *args: Any, **fields: Any):
        """Refuse unknown fields by name, and arguments without one."""
        own = [field for field in dataclasses.fields(cls) if field.init]  # pyright: ignore
        places = [field.name for field in own if not field.kw_only]
        if len(args) > len(places):
            raise TypeError(
                f"{cls.__name__}: got {len(args)} arguments by position, want "
                f"{', '.join(places)}; give the others by name (the number of input "
                "features is read from the inputs)"
            )
        cell = fields.get("cell", args[0] if args else None)
        layers.check_options(cls.__name__, [f.name for f in own], fields, cell)
        return super().__new__(cls)

    def __post_init__(self):
        """Make lists and dicts hashable, because a module has to be hashable."""
        for field in dataclasses.fields(self):  # pyright: ignore
            value = getattr(self, field.name, None)
            if isinstance(value, list | dict):
                object.__setattr__(self, field.name, _frozen(value))
        super().__post_init__()  # pyright: ignore


def _frozen(value):
    """A list as a tuple, a dict as a FrozenDict."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return FrozenDict(value) if isinstance(value, dict) else value
