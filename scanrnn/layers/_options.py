"""The keyword arguments of layers, and the options of cells that layers pass on."""

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, TypeVar

from scanrnn.cells import Cell
from scanrnn.cells._conv import ConvCell, ConvOptions
from scanrnn.cells._gated import GatedCell, GateOptions
from scanrnn.cells._wrapper import Wrapper

T = TypeVar("T")

# Options that several factories share, and the classes that have their defaults.
_SHARED = {GateOptions: GatedCell, ConvOptions: ConvCell}


class LayerOptions(TypedDict, total=False):
    """The keyword arguments of `RNN` that its subclasses pass on."""

    num_layers: int | None
    bidirectional: bool
    residual: bool | Literal["gnmt"]
    highway: bool
    dropout: float
    deterministic: bool
    param_dtype: Any
    carry_dtype: Any
    time_major: bool
    return_carry: bool
    reverse: bool
    keep_order: bool
    zero_padding: bool
    unroll: int | bool
    implementation: str | None
    wavefront: bool | None
    scheme: Any
    kernel_init: Any | None
    recurrent_kernel_init: Any | None
    bias_init: Any | None
    kernel_metadata: Mapping[str, Any]
    recurrent_kernel_metadata: Mapping[str, Any]
    bias_metadata: Mapping[str, Any]
    rngs: Any


# What other libraries call our options.
_SIZE = "hidden_features in scanrnn.nnx, features in scanrnn.linen"
_INPUTS = "in_features in scanrnn.nnx; scanrnn.linen reads it from the inputs"
_OURS = {
    **dict.fromkeys(("hidden_size", "hidden_features", "features", "units"), _SIZE),
    **dict.fromkeys(("input_size", "in_features"), _INPUTS),
    "batch_first": "time_major here, which is False by default",
    "bias": "use_bias here",
    "nonlinearity": "activation of Elman",
    "go_backwards": "reverse here",
    "return_state": "return_carry here",
    "return_sequences": "not needed: all outputs are returned",
}


def _shown(names):
    """The names; those of other libraries with ours."""
    return ", ".join(f"{n} ({_OURS[n]})" if n in _OURS else n for n in names)


def own_options(
    module: Any, names: Iterable[str], given: dict[str, Any], other: str
) -> dict[str, Any]:
    """Take the options that are not those of its cell out of the options of a module.

    Args:
        module: the module, whose class has a factory.
        names: the names of the options to take.
        given: the options by name; those of the cell are left.
        other: name of the class that has the options to take, for the message.

    Raises:
        TypeError: if an option is left that the factory does not have.
    """
    own = {name: given.pop(name) for name in names if name in given}
    known = cell_options(type(module)._make)
    unknown = [option for option in given if option not in known]
    if unknown:
        raise TypeError(
            f"{type(module).__name__}: got {_shown(unknown)}, want options of its "
            f"cell ({', '.join(known)}) or of {other}"
        )
    return own


def check_options(
    name: str, known: Iterable[str], given: Mapping[str, Any], cell: Any
) -> None:
    """Raise TypeError if a module was given options that it does not have.

    Args:
        name: name of the module.
        known: the names of its options.
        given: the options that came, by name.
        cell: the cell that came, or a list of them, or anything else.
    """
    shown = [option for option in known if option not in ("parent", "name")]
    unknown = [option for option in given if option not in (*shown, "parent", "name")]
    if unknown:
        raise TypeError(
            f"{name}: got {_shown(unknown)}, {_of_cell(name, unknown, given, cell)}"
            f"want options of {name}: {', '.join(shown)}"
        )


def _of_cell(name, unknown, given, cell):
    """How to write those unknown options of a module that its cell takes."""
    cells = cell if isinstance(cell, list | tuple) else (cell,)
    for one in cells:
        one = one.innermost if isinstance(one, Wrapper) else one
        taken = [option for option in unknown if option in _fields(one)]
        if taken:
            options = ", ".join(f"{o}={_written(given[o])}" for o in taken)
            factory = getattr(one, "name", None) if isinstance(one, Cell) else None
            kind = f"scanrnn.cells.{factory}" if factory else type(one).__name__
            return f"which the cell takes: write {name}({kind}({options}), ...); "
    return ""


def _fields(cell):
    """The names of the options of a cell, ours or one of Flax."""
    if isinstance(cell, Cell):
        return vars(cell) if dataclasses.is_dataclass(cell) else ()
    # Any object may come here; a module's own check refuses it later.
    return inspect.signature(type(cell).__init__).parameters


def _written(value):
    return repr(value) if isinstance(value, str | int | float) else "..."


def named_constructor(base: type, name: str) -> Callable[..., None]:
    """A constructor that calls that of `base`, with the name of the derived class.

    Python's errors about arguments then show this name.

    Args:
        base: the base class, whose first arguments are sizes.
        name: name of the derived class.
    """

    @functools.wraps(base.__init__)
    def constructor(self, in_features, hidden_features, *more, **options):
        if more:
            raise TypeError(
                f"{name}: got {2 + len(more)} arguments by position, want in_features "
                "and hidden_features; give the others by name, such as num_layers="
            )
        base.__init__(self, in_features, hidden_features, **options)

    constructor.__qualname__ = f"{name}.__init__"
    return constructor


def named_class(
    base: type[T],
    doc: str,
    name: str,
    factory: Callable[..., Cell],
    more: str = "",
    spatial: str = "",
) -> type[T]:
    """Make the class with the name of a cell, for the cells of one factory.

    The options of the factory become fields if the base is a dataclass, as in Linen.
    Otherwise its constructor takes them.

    Args:
        base: the base class; its attribute `_make` becomes the factory.
        doc: the docstring, with places for `name`, `factory`, `more` and `spatial`.
        name: name of the class.
        factory: the factory of its cells.
        more: further arguments in the example of the docstring.
        spatial: sizes of spatial axes there.
    """
    words = {"factory": factory.__name__, "more": more, "spatial": spatial}
    names: dict[str, Any] = {
        "__doc__": doc.format(name=name, **words),
        "__module__": base.__module__,
        "_make": staticmethod(factory),
    }
    keywords = {}
    if dataclasses.is_dataclass(base):
        options = cell_options(factory)
        names |= options | {"__annotations__": dict.fromkeys(options, Any)}
        keywords["kw_only"] = True
    else:
        names["__init__"] = named_constructor(base, name)
    body = operator.methodcaller("update", names)
    return types.new_class(name, (base,), keywords, body)


def cell_of(module: Any) -> Cell:
    """The cell of a module whose class has a factory, and fields for its options."""
    make = type(module)._make
    return make(**{name: getattr(module, name) for name in cell_options(make)})


def cell_options(factory: Callable[..., Cell]) -> dict[str, Any]:
    """The options of a factory of cells, and their defaults."""
    options = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (shared,) = parameter.annotation.__args__
            fields = dataclasses.fields(_SHARED[shared])
            options |= {field.name: field.default for field in fields}
        else:
            options[name] = parameter.default
    return options
