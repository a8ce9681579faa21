"""Export programs to files: ONNX for onnxruntime and others, StableHLO for JAX."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export

from scanrnn._files import replacing
from scanrnn.serving import _program
from scanrnn.serving._program import Input
from scanrnn.serving._size import check_size

# A file holds the program, this mark, and the digest of the program. A damaged program
# would crash the process that compiles it. Other readers of the format ignore the rest.
_MARK = b"scanrnn sha256 "
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_NEEDS = "pip install onnx flatbuffers"


def to_onnx(
    model: Any,
    path: str | os.PathLike | None = None,
    *,
    inputs: Mapping[str, Input | Sequence[int | str]] | None = None,
    outputs: Sequence[str] | None = None,
    carry: bool = False,
    lengths: bool = False,
) -> Any:
    """Export a layer, a model or any function to ONNX.

    The program is traced, and every primitive is written as an operator of ONNX. A loop
    becomes the operator LSTM (with or without peepholes), GRU or RNN if its step has
    the equations of that operator. Every other loop becomes a `Scan`, and its step is
    the body. Sizes may be left open. Numbers of half precision, also inputs and
    outputs, are stored as float32, and are rounded wherever JAX rounds them.

    The recurrent operators of ONNX set outputs after the end of a sequence to zero. Our
    layers do not. So a loop with `lengths` becomes a `Scan`.

    These have no ONNX form here: a `lax.switch` of more than two branches, choices
    among more than two arrays, sorting, Fourier transforms, pooling windows, random and
    complex numbers, bit shifts, reductions by bitwise operators, the largest or
    smallest of uint64, `jnp.interp`, `jnp.digitize`, `x.at[...].apply`, and special
    functions other than erf (such as `lgamma`, `digamma` and Bessel functions).

    Args:
        model: a layer of `scanrnn.nnx`, or a function of arrays such as a model.
        path: where to write the file; None to write no file.
        inputs: a dict with a shape, or an `Input`, for each argument of the function,
            in its order. The keys are the names in the file. None only for a layer: its
            one argument is "input", of shape `("batch", "sequence", D)`, or
            `("sequence", "batch", D)` if the layer is time-major.
        outputs: names of the output arrays; None for "output", or for "output_0" and so
            on if a function returns several.
        carry: whether the first carry of a layer is an input (`initial_h`, or
            `initial_0_h` and so on for several layers), and its last carry an output
            (`last_h`, or `last_0_h` and so on).
        lengths: whether the lengths of the sequences are an input: `lengths`, int32
            `[batch]`.

    Returns:
        The model: an `onnx.ModelProto` of opset 20, checked by `onnx.checker`.
        onnxruntime 1.18 and later can run it.

    Raises:
        ImportError: without the package onnx.
        TypeError: if `inputs` is no mapping, a dtype in it none, `carry` or `lengths`
            not True or False, or the model no function of arrays.
        ValueError: for a primitive that has no ONNX form (the message names it), or not
            for this dtype; if `inputs`, `outputs`, `carry` or `lengths` do not fit the
            model; or if its weights have more than 2 GB.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> proto = scanrnn.serving.to_onnx(gru, carry=True)
        >>> [one.name for one in proto.graph.output]
        ['output', 'last_h']
        >>> "GRU" in [node.op_type for node in proto.graph.node]
        True
    """
    try:
        from scanrnn.serving import _onnx
    except ImportError as error:
        raise ImportError(f"to_onnx needs the package onnx: {_NEEDS}") from error
    model = _program.step_by_step(model)
    program = _program.make("to_onnx", model, inputs, outputs, carry, lengths)
    proto = _onnx.convert(*program)
    if path is not None:
        with replacing(path) as partial:
            partial.write_bytes(proto.SerializeToString())
    return proto


def to_stablehlo(
    model: Any,
    path: str | os.PathLike | None = None,
    *,
    inputs: Mapping[str, Input | Sequence[int | str]] | None = None,
    carry: bool = False,
    lengths: bool = False,
    platforms: str | Sequence[str] = ("cpu", "cuda", "tpu"),
    gradients: int = 0,
) -> export.Exported:
    """Export a layer, a model or any function to StableHLO, with its weights.

    Only JAX is needed to run the file (see `load_stablehlo`). Versions of JAX from the
    next six months can run it. To keep weights for longer, save them as safetensors.
    Each platform gets the loop that was planned for it.

    Args:
        model: a layer of `scanrnn.nnx`, or a function of arrays such as a model.
        path: where to write the file; None to write no file.
        inputs: see `to_onnx`. The program in the file takes them by position.
        carry: see `to_onnx`.
        lengths: see `to_onnx`.
        platforms: names of the platforms on which the program will run: one or several
            of "cpu", "cuda", "rocm" and "tpu".
        gradients: how many times the loaded function can be differentiated with respect
            to its inputs.

    Returns:
        The program. Its `call` takes the inputs in their order and returns a list of
        arrays.

    Raises:
        ImportError: if `path` is given and the package flatbuffers is missing.
        TypeError: if `inputs` is no mapping, a dtype in it none, `carry` or `lengths`
            not True or False, or the model no function of arrays.
        ValueError: if the model cannot be exported, a platform is unknown, `gradients`
            is less than 0, or the weights have more than 2 GB and `path` is given.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> exported = scanrnn.serving.to_stablehlo(gru)
        >>> exported.platforms, exported.call(jnp.ones([2, 7, 3]))[0].shape
        (('cpu', 'cuda', 'tpu'), (2, 7, 5))
    """
    names = _checked_platforms(platforms)
    if not isinstance(gradients, int) or gradients < 0:
        raise ValueError(f"to_stablehlo: gradients={gradients!r}, want 0, 1 or more")
    program = _program.make("to_stablehlo", model, inputs, None, carry, lengths)
    traced = export.export(jax.jit(program.function), platforms=names)
    exported = traced(*map(_program.traced, program.inputs.values()))
    if path is not None:
        check_size("to_stablehlo", len(exported.mlir_module_serialized))
        try:
            content = exported.serialize(vjp_order=gradients)
        except ImportError as error:
            raise ImportError(f"to_stablehlo needs flatbuffers: {_NEEDS}") from error
        with replacing(path) as partial:
            partial.write_bytes(bytes(content) + _MARK + _digest(content))
    return exported


def _checked_platforms(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in names if name not in _PLATFORMS]
    if unknown or not names:
        hint = "; on a GPU that is 'cuda' or 'rocm'" if "gpu" in unknown else ""
        raise ValueError(
            f"to_stablehlo: platforms={given!r}, want one or several of "
            f"{', '.join(map(repr, _PLATFORMS))}{hint}"
        )
    return names


def _digest(content: bytes | bytearray) -> bytes:
    return hashlib.sha256(content).digest()


def load_stablehlo(path: str | os.PathLike) -> Callable:
    """Read a program that `to_stablehlo` wrote. `jax.export` can also read it.

    A digest in the file detects damage, but not tampering. The file is a program: read
    only files that you trust.

    Args:
        path: where the file is.

    Returns:
        A function that takes the inputs in their order and returns a list of arrays.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError: if `path` is no path, such as the bytes of a file.
        ValueError: if the file is damaged, was not written by `to_stablehlo`, or is too
            old or too new for this JAX.

    Example:
        >>> import pathlib, tempfile, jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "gru.stablehlo"
        ...     _ = scanrnn.serving.to_stablehlo(gru, path)
        ...     scanrnn.serving.load_stablehlo(path)(jnp.ones([2, 7, 3]))[0].shape
        (2, 7, 5)
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"load_stablehlo: path is a {type(path).__name__}, want where the file is; "
            "what to_stablehlo returns has `call` already"
        )
    content, mark, digest = Path(path).read_bytes().rpartition(_MARK)
    if not mark or digest != _digest(content):
        raise ValueError(
            f"load_stablehlo: {str(path)!r} is damaged or was not written by "
            "scanrnn.serving.to_stablehlo; what jax.export wrote, "
            "jax.export.deserialize reads"
        )
    try:
        return export.deserialize(bytearray(content)).call
    # The type of the error depends on the version of JAX that wrote the file.
    except Exception as error:
        raise ValueError(
            f"load_stablehlo: {str(path)!r} cannot be read as a program of this "
            f"version of JAX ({jax.__version__}): {error or type(error).__name__}; "
            "export it again with this version"
        ) from error
