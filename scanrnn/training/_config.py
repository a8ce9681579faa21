"""The options of a training run, and the command line made from them."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from scanrnn.machines import MACHINES
from scanrnn.training._precision import Precision

CELLS = ("lstm", "gru", "elman", "mgu", "ugrnn")

# A key uses the low 32 bits of a seed: a larger seed would repeat a smaller one.
_LAST_SEED = 2**32 - 1
# Steps are counted in 32 bits.
_LAST_STEP = 2**31 - 1


def _option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    one_of: tuple[str, ...] | None = None,
) -> Any:
    metadata = {"help": help, "least": least, "most": most, "one_of": one_of}
    return dataclasses.field(default=default, metadata=metadata)


def check_temperature(value: float) -> None:
    """Raises a ValueError for a temperature by which logits cannot be divided."""
    # Divided by less, they would overflow.
    if value != 0 and not value >= 1e-3:
        raise ValueError(
            f"temperature: got {value}, want at least 0.001, or 0 for the likeliest "
            "token"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options of a training run; every field is also a `--flag` of the command line.

    The defaults are those of `make demo`: two stacked layer-norm LSTMs of 256 features,
    trained for as many steps as fit into three minutes. `python -m scanrnn train
    --help` explains each option.

    Args:
        **options: The fields, by name.

    Raises:
        TypeError: If a field has a value of the wrong type.
        ValueError: If the value of a field is out of range or not one of the choices,
            or if two fields do not fit together.

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
    text: str = _option(
        "",
        "text file to train on, or folder with ptb.train.txt and ptb.valid.txt "
        "(default: text that comes with Python)",
    )
    tokens: str = _option(
        "characters",
        "how to split the text; without --text, words come from the docstrings of "
        "Python's library",
        one_of=("characters", "words"),
    )
    vocabulary: int = _option(
        0, "most frequent words to keep; 0 for all", least=0, most=2**24
    )
    batching: str = _option(
        "streams",
        "parallel streams of text whose carry crosses windows, or whole sentences, "
        "in buckets of similar length",
        one_of=("streams", "sentences"),
    )
    held_out: float = _option(
        0.1,
        "share of the text, at its end, for evaluation; a PTB folder has a file for it",
    )
    cell: str = _option("lstm", "recurrent cell of all layers", one_of=CELLS)
    norm: str = _option(
        "ba2016", "layer norm inside the cells", one_of=("none", "ba2016", "rms")
    )
    residual: bool = _option(True, "add the input of a layer to its output")
    features: int = _option(
        256, "width of the embedding and of every layer", least=1, most=2**16
    )
    layers: int = _option(2, "number of stacked layers", least=1, most=1000)
    keep: float = _option(
        0.9,
        "share of features that dropout keeps, around every layer",
        least=1e-3,
        most=1,
    )
    uniform: float = _option(
        0.0,
        "draw all weights uniformly from -UNIFORM to UNIFORM; 0 for the usual ones",
        least=0,
        most=1e38,
    )
    precision: str = _option(
        "auto",
        "types of params, compute, carry and output, as kind=type,...; a type alone "
        "is for compute; auto is bfloat16 where its products are as fast as "
        "float32's or faster, else float32",
    )
    loss_scale: str = _option(
        "auto",
        "loss scaling: auto scales if a type is float16",
        one_of=("auto", "dynamic", "none"),
    )
    batch: int = _option(8, "parallel streams, or sentences", least=1, most=2**20)
    window: int = _option(64, "time steps of a training step", least=1, most=2**20)
    accumulate: int = _option(
        1, "parts of a batch whose gradients are added up", least=1, most=2**20
    )
    steps: int = _option(0, "training steps; 0 for those of --epochs", least=0)
    epochs: int = _option(
        0, "epochs of training; 0 for as many as fit into --minutes", least=0
    )
    minutes: float = _option(
        3.0, "how long to train without --steps and --epochs", least=1e-2, most=1e6
    )
    optimizer: str = _option(
        "adamw",
        "adamw with a warm-up and a cosine decay of the learning rate, or sgd with the "
        "schedule of the ptb recipes",
        one_of=("adamw", "sgd"),
    )
    learning_rate: float = _option(3e-3, "peak learning rate", least=0.0, most=1e38)
    decay: float = _option(
        0.5, "sgd: factor of the learning rate in every epoch", least=0, most=1
    )
    decay_after: int = _option(4, "sgd: epochs before the first decay", least=0)
    clip: float = _option(1.0, "largest global norm of a gradient", least=0.0)
    loss: str = _option(
        "mean",
        "mean over all tokens, or sum over time and mean over the batch",
        one_of=("mean", "sum"),
    )
    patience: int = _option(
        20, "most steps in a row to skip before training stops", least=0
    )
    evaluate_every: int = _option(
        300, "steps between evaluations, each with a checkpoint", least=1
    )
    health: bool = _option(False, "probe gates and gradients at every evaluation")
    tensorboard: bool = _option(False, "also write for TensorBoard")
    sample: int = _option(800, "tokens to generate at the end", least=0)
    temperature: float = _option(
        0.7, "temperature of sampling; 0 for the likeliest token", most=1e6
    )
    devices: int = _option(
        1, "number of devices; 0 for all, as several processes take them", least=0
    )
    tensor: int = _option(1, "devices that share the gates of a layer", least=1)
    seed: int = _option(0, "seed of parameters and sampling", least=0, most=_LAST_SEED)

    def __post_init__(self) -> None:
        """Checks every field."""
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        if not self.out:
            raise ValueError("out: got '', want a folder; '.' is the current one")
        if not 0.0 < self.held_out < 1.0:
            raise ValueError(
                f"held_out: got {self.held_out}, want a share between 0 and 1"
            )
        check_temperature(self.temperature)
        if not self.clip > 0:
            raise ValueError(f"clip: got {self.clip}, want more than 0")
        if self.batching == "sentences" and self.tokens != "words":
            raise ValueError("batching: sentences need words; add --tokens words")
        if self.batching == "sentences" and self.accumulate > 1:
            raise ValueError(
                "accumulate: sentences cannot be accumulated; use --accumulate 1"
            )
        if self.batching == "sentences" and self.loss == "sum":
            raise ValueError(
                "loss: 'sum' is for windows of one length; sentences need --loss mean"
            )
        if self.batch % self.accumulate:
            raise ValueError(
                f"accumulate: got {self.accumulate}, want a divisor of "
                f"batch={self.batch}"
            )
        if "float64" in self.precision and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                "precision: float64 is switched off in JAX; set JAX_ENABLE_X64=1"
            )
        # Checks the text only. The machine is not looked up until a model is made.
        Precision.parse(self.precision, MACHINES["unknown"])

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Config":
        """Makes a config from stored or parsed values.

        Args:
            values: Field names and values; missing fields keep their defaults.

        Returns:
            The config.

        Raises:
            TypeError: If a value has the wrong type.
            ValueError: If a name is not a field, or a value is not valid.

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

        The parsed options hold only the flags that were given.

        Args:
            parser: The parser to extend.

        Example:
            >>> import argparse
            >>> from scanrnn.training import Config
            >>> parser = argparse.ArgumentParser()
            >>> Config.add_options(parser)
            >>> vars(parser.parse_args(["--evaluate-every", "10"]))
            {'evaluate_every': 10}
        """
        for field in dataclasses.fields(cls):
            choices = field.metadata["one_of"]
            words = f", one of {', '.join(choices)}" if choices else ""
            default = "" if field.default == "" else f" (default: {field.default!r})"
            kind: dict[str, Any] = {"type": field.type, "metavar": field.name.upper()}
            if field.type is bool:
                kind = {"action": argparse.BooleanOptionalAction}
            parser.add_argument(
                "--" + field.name.replace("_", "-"),
                default=argparse.SUPPRESS,
                help=field.metadata["help"] + words + default,
                **kind,
            )


def _check(field, value):
    """Raises an error for a value of the wrong type or out of bounds."""
    kinds = (int, float) if field.type is float else (field.type,)
    if type(value) not in kinds:
        raise TypeError(
            f"{field.name}: got {value!r} of type {type(value).__name__}, "
            f"want {getattr(field.type, '__name__', field.type)}"
        )
    least, most, one_of = (field.metadata[n] for n in ("least", "most", "one_of"))
    if most is None and field.type is int:
        most = _LAST_STEP
    # Written so that NaN is refused too.
    if least is not None and not value >= least:
        raise ValueError(f"{field.name}: got {value}, want at least {least}")
    if most is not None and value > most:
        raise ValueError(f"{field.name}: got {value}, want at most {most}")
    if one_of is not None and value not in one_of:
        raise ValueError(
            f"{field.name}: got {value!r}, want one of {', '.join(one_of)}"
        )
