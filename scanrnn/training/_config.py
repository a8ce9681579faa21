"""The options of a training run, and the command line made from them."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

DTYPES = ("float32", "bfloat16")


# A key is made of the low 32 bits of a seed: a larger one would repeat a smaller one.
_LAST_SEED = 2**32 - 1
# Steps are counted in 32 bits.
_LAST_STEP = 2**31 - 1


def _option(
    default: Any, help: str, *, least: float | None = None, most: float | None = None
) -> Any:
    metadata = {"help": help, "least": least, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options of a training run; every field is also a `--flag` of the command line.

    The defaults are those of `make demo`: two stacked layer-norm LSTMs of 256 features,
    about three minutes on two CPU cores.

    Args:
        out: Folder for the checkpoint, the metrics, the loss curve and the sample.
        text: A UTF-8 text file to train on; empty for the documentation of Python.
        features: Width of the embedding and of every layer.
        layers: Number of stacked layers.
        batch: Number of parallel streams of text, `B`.
        window: Characters per step and stream, `T`; the carry crosses windows,
            gradients do not.
        steps: Number of training steps.
        learning_rate: Peak of the learning rate, after a linear warm-up and before a
            cosine decay.
        clip: Largest global norm of a gradient.
        held_out: Share of the text, at its end, that is never trained on.
        dtype: Type of the operands of every matrix product: `float32` or `bfloat16`.
            Parameters and accumulation are float32 either way.
        evaluate_every: Steps between two evaluations, each with a checkpoint.
        sample: Number of characters to generate at the end.
        temperature: Temperature of sampling; below 1 is more cautious.
        seed: Seed of the initial parameters and of sampling, at most `2**32 - 1`.

    Raises:
        ValueError: If a field has a value that cannot work.

    Example:
        >>> from scanrnn.training import Config
        >>> Config(batch=4).batch
        4
        >>> Config(window=0)
        Traceback (most recent call last):
            ...
        ValueError: window: got 0, want at least 1
    """

    out: str = _option("runs/demo", "folder for everything the run leaves")
    text: str = _option("", "text file to train on (default: Python's documentation)")
    features: int = _option(
        256, "width of the embedding and of every layer", least=1, most=2**16
    )
    layers: int = _option(2, "number of stacked layers", least=1, most=1000)
    batch: int = _option(8, "parallel streams of text", least=1, most=2**20)
    window: int = _option(64, "characters per step and stream", least=1, most=2**20)
    steps: int = _option(3000, "training steps", least=1, most=_LAST_STEP)
    learning_rate: float = _option(3e-3, "peak learning rate", least=0.0, most=1e38)
    clip: float = _option(1.0, "largest global norm of a gradient", least=0.0)
    held_out: float = _option(0.1, "share of the text, at its end, for evaluation")
    dtype: str = _option("bfloat16", f"type of matrix operands: {' or '.join(DTYPES)}")
    evaluate_every: int = _option(
        300, "steps between evaluations", least=1, most=_LAST_STEP
    )
    sample: int = _option(
        800, "characters to generate at the end", least=0, most=_LAST_STEP
    )
    temperature: float = _option(0.7, "temperature of sampling", least=1e-3, most=1e6)
    seed: int = _option(0, "seed of parameters and sampling", least=0, most=_LAST_SEED)

    def __post_init__(self) -> None:
        """Checks every field."""
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), field.metadata["least"]
            kinds = (int, float) if field.type is float else (field.type,)
            if type(value) not in kinds:
                raise TypeError(
                    f"{field.name}: got {value!r} of type {type(value).__name__}, "
                    f"want {getattr(field.type, '__name__', field.type)}"
                )
            # Written so that NaN is refused too.
            if least is not None and not value >= least:
                raise ValueError(f"{field.name}: got {value}, want at least {least}")
            if (most := field.metadata["most"]) is not None and value > most:
                raise ValueError(f"{field.name}: got {value}, want at most {most}")
        if not 0.0 < self.held_out < 1.0:
            raise ValueError(
                f"held_out: got {self.held_out}, want a share between 0 and 1"
            )
        if self.dtype not in DTYPES:
            raise ValueError(
                f"dtype: got {self.dtype!r}, want one of {', '.join(DTYPES)}"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Config":
        """Makes a config of stored or parsed values.

        Args:
            values: Field names and values; missing fields keep their defaults.

        Returns:
            The config.

        Raises:
            ValueError: If a name is not a field.

        Example:
            >>> from scanrnn.training import Config
            >>> Config.from_mapping({"steps": 5}).steps
            5
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"unknown option {unknown[0]!r}; the options are {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds a `--flag` for every field to a parser.

        Args:
            parser: The parser to extend.

        Example:
            >>> import argparse
            >>> from scanrnn.training import Config
            >>> parser = argparse.ArgumentParser()
            >>> Config.add_options(parser)
            >>> parser.parse_args(["--evaluate-every", "10"]).evaluate_every
            10
        """
        for field in dataclasses.fields(cls):
            parser.add_argument(
                "--" + field.name.replace("_", "-"),
                type=field.type,  # type: ignore[arg-type]
                default=field.default,
                help=f"{field.metadata['help']} (default: {field.default!r})",
            )
