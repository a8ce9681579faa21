"""Arrays in safetensors files, which are read without pickle."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.core import meta

from scanrnn._files import replacing
from scanrnn.interop import _arrays
from scanrnn.interop._weights import Weights

# What holds one array, in a tree of Flax.
_BOXES = nnx.Variable, meta.AxisMetadata
# The dtypes that safetensors 0.8.0 reads into arrays of NumPy. It writes float8, too.
_READABLE = {"bool", "float16", "bfloat16", "float32", "float64"}
_READABLE |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def save_safetensors(
    path: str | os.PathLike, tree: Any, metadata: Mapping[str, str] | None = None
) -> None:
    """Write the arrays of a tree to a safetensors file.

    Each array is written row by row, also if it is transposed in memory. (safetensors
    0.8.0 alone would write a transposed array in the order of its memory.) The file
    appears under its name only when it is complete.

    Args:
        path: where to write the file.
        tree: a dict of arrays such as `to_torch` returns, or any other pytree: nested
            dicts, a Flax module. The names of nested parts are joined by dots.
        metadata: texts by name, which the file keeps too.

    Raises:
        ImportError: without the package safetensors.
        TypeError: for a leaf that is not an array of numbers, such as a PRNG key, or
            has a dtype of 4 bits or a float of 8; if `path` is no path, or `tree` is a
            `Weights`, whose arrays are in its `tree`.
        ValueError: if two arrays would have the same name.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> from scanrnn.interop import load_safetensors, save_safetensors
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "weights.safetensors"
        ...     kernel = np.arange(6.0).reshape(2, 3).T
        ...     save_safetensors(path, {"cell": {"kernel": kernel}})
        ...     load_safetensors(path)["cell.kernel"].tolist()
        [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    numpy_io = _library()
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"save_safetensors: path is of type {type(path).__name__}, want where to "
            "write the file; the arguments are (path, tree)"
        )
    if isinstance(tree, Weights):
        raise TypeError(
            "save_safetensors: tree is of type Weights, want arrays: weights.tree()"
        )
    arrays: dict[str, np.ndarray] = {}
    for name, leaf in _named(tree):
        if name in arrays:
            raise ValueError(
                f"save_safetensors: two arrays have the name {name!r}; rename one"
            )
        arrays[name] = _rows(name, leaf)
    with replacing(path) as partial:
        numpy_io.save_file(arrays, partial, dict(metadata or {}))


def load_safetensors(path: str | os.PathLike, like: Any = None) -> Any:
    """Read the arrays of a safetensors file.

    Args:
        path: where the file is.
        like: a tree with the structure that was saved; its leaves are arrays or
            `jax.ShapeDtypeStruct`. None for a dict of arrays by name.

    Returns:
        A dict of NumPy arrays by name; with `like`, a tree with the same structure.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: without the package safetensors.
        ValueError: if the file is damaged or not a safetensors file, or its arrays do
            not have the names, shapes and dtypes of `like`.

    Example:
        >>> import pathlib, tempfile, jax.numpy as jnp
        >>> from scanrnn.interop import load_safetensors, save_safetensors
        >>> tree = {"layers": [{"bias": jnp.ones(3)}, {"bias": jnp.zeros(3)}]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "weights.safetensors"
        ...     save_safetensors(path, tree)
        ...     load_safetensors(path, like=tree)["layers"][0]["bias"].tolist()
        [1.0, 1.0, 1.0]
    """
    numpy_io = _library()
    if not os.path.exists(path):
        raise FileNotFoundError(f"load_safetensors: there is no file {str(path)!r}")
    try:
        arrays = numpy_io.load_file(path)
    # The type of the error depends on which byte of the file is damaged.
    except Exception as error:
        raise ValueError(
            f"load_safetensors: {str(path)!r} cannot be read as safetensors: "
            f"{error}; write it again with save_safetensors"
        ) from error
    return arrays if like is None else _fitted(str(path), arrays, like)


def _fitted(path, arrays, like):
    wanted = dict(_named(like))
    found = {k: (a.shape, a.dtype) for k, a in arrays.items()}
    if set(found) != set(wanted):
        raise ValueError(
            f"load_safetensors: {path!r} has the arrays {sorted(found)}, want "
            f"{sorted(wanted)}; like=None reads the arrays as they are"
        )
    for name, leaf in wanted.items():
        # A number is saved as an array, too.
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if found[name] != (tuple(leaf.shape), leaf.dtype):
            shape, dtype = found[name]
            raise ValueError(
                f"load_safetensors: {name!r} of {path!r} is {dtype}{list(shape)}, want "
                f"{leaf.dtype}{list(leaf.shape)}; like=None reads it as it is"
            )
    structure = jax.tree.structure(like)
    return structure.unflatten([arrays[name] for name in wanted])


def _named(tree) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their names, the parts joined by dots."""
    flatten = jax.tree_util.tree_flatten_with_path
    tops = flatten(tree, is_leaf=lambda node: isinstance(node, _BOXES))[0]
    boxes = {path for path, node in tops if isinstance(node, _BOXES)}
    for path, leaf in flatten(tree)[0]:
        if path[:-1] in boxes:
            path = path[:-1]  # the value in a box of Flax has the name of the box
        yield jax.tree_util.keystr(path, simple=True, separator="."), leaf


def _rows(name, leaf):
    """The leaf as an array that lies row by row in memory."""
    dtype: Any = getattr(leaf, "dtype", np.dtype(object))
    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(
            f"save_safetensors: {name!r} is a PRNG key; save jax.random.key_data of it"
        )
    array = np.asarray(_arrays.plain(leaf))
    if array.dtype.hasobject or array.dtype.kind in "USMmc":
        raise TypeError(
            f"save_safetensors: {name!r} has dtype {array.dtype}, want real numbers"
            + "; save .real and .imag by themselves" * (array.dtype.kind == "c")
        )
    if array.dtype.name not in _READABLE:
        raise TypeError(
            f"save_safetensors: {name!r} has dtype {array.dtype}, which cannot be read "
            "back into an array of NumPy; cast floats to bfloat16, integers to int8"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else array.copy(order="C")


def _library():
    try:
        from safetensors import numpy
    except ImportError as error:
        raise ImportError(
            "scanrnn reads and writes safetensors files with the package of that name: "
            "pip install safetensors"
        ) from error
    return numpy
