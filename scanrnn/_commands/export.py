"""`python -m scanrnn export`: write a model as a file that other programs can run."""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from scanrnn import serving, training
from scanrnn._files import replacing

FORMATS = {"onnx": "model.onnx", "stablehlo": "model.stablehlo"}
_SUFFIXES = tuple(Path(name).suffix for name in FORMATS.values())


def add(commands: Any) -> None:
    """Adds the command `export` to the command line.

    Args:
        commands: The sub-parsers of the command line.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "export", help="write a trained model as ONNX or StableHLO"
    )
    default = "(default: %(default)s)"
    parser.add_argument(
        "--out", default="runs/demo", help=f"folder of the run {default}"
    )
    parser.add_argument(
        "--format", default="onnx", choices=list(FORMATS), help=f"file format {default}"
    )
    parser.add_argument(
        "--to", help="the file (default: model.onnx or model.stablehlo in --out)"
    )
    parser.set_defaults(run=run)


def run(options: dict[str, Any], console: Console) -> int:
    """Writes the file, and next to it the vocabulary: the token of each id.

    Args:
        options: The options of the command line, by name.
        console: Where to print.

    Returns:
        The exit status.

    Raises:
        ValueError: If there is no run, its checkpoint cannot be read, or the file of
            the vocabulary belongs to another model.
    """
    model, vocabulary = training.load_model(options["out"])
    kind = options["format"]
    path = Path(options["to"] or Path(options["out"]) / FORMATS[kind])
    words = json.dumps(list(vocabulary.tokens), ensure_ascii=False)
    beside = _vocabulary_of(path, words)
    # Both are complete before either is renamed: a kill leaves no new model beside the
    # vocabulary of an older one, except between the two renames.
    with replacing(beside) as partial:
        partial.write_text(words, encoding="utf-8")
        write(model, kind, path)
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


def _vocabulary_of(path: Path, words: str) -> Path:
    """The file for the vocabulary of a model; raises ValueError if another needs it."""
    # Only the suffix of a format goes: `lm.v1` and `lm.v2` have files of their own.
    name = path.stem if path.suffix in _SUFFIXES else path.name
    beside = path.with_name(f"{name}.vocabulary.json")
    if not beside.exists() or beside.read_bytes() == words.encode():
        return beside
    models = {path.with_name(name + suffix) for suffix in ("", *_SUFFIXES)} - {path}
    others = sorted(model.name for model in models if model.is_file())
    # What is written again may change. What is left may be of a model elsewhere.
    if others or not path.exists():
        raise ValueError(
            f"to: {str(beside)!r} has another vocabulary, of "
            f"{' and '.join(others) or 'another model'}; choose another name with "
            "--to, or delete the files of the other model"
        )
    return beside


def write(model: Any, kind: str, path: Path) -> None:
    """Exports a language model: ids and carry in, logits and carry out.

    Args:
        model: A model that takes ids `[T, B]` and a carry.
        kind: The format: "onnx" or "stablehlo".
        path: The file to write.
    """
    model = serving.step_by_step(model) if kind == "onnx" else model
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    carry = jax.eval_shape(lambda model, ids: model(ids)[0], model, ids)
    leaves, structure = jax.tree.flatten_with_path(carry)
    inputs = {"input": serving.Input(("sequence", "batch"), jnp.int32)}
    names = []
    for keys, leaf in leaves:
        name = "_".join(jax.tree_util.keystr((key,), simple=True) for key in keys)
        names.append(name)
        shape = ("batch", *leaf.shape[1:])
        inputs[f"initial_{name}"] = serving.Input(shape, leaf.dtype)

    def function(ids, *first):
        last, logits = model(ids, structure.unflatten(first))
        return [logits, *jax.tree.leaves(last)]

    if kind == "onnx":
        outputs = ["output", *(f"last_{name}" for name in names)]
        serving.to_onnx(function, path, inputs=inputs, outputs=outputs)
    else:
        serving.to_stablehlo(function, path, inputs=inputs)
