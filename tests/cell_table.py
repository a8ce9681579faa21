"""All cells, with every option that changes their equations.

A new cell needs one row here and one oracle in `oracles`. All tests use this table.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from scanrnn import cells
from scanrnn.cells._cell import param_types
from tests.oracles import conv, elementwise, gated, linear, memories, minimal, xlstm

T, B, H = 3, 2, 4


class Row(NamedTuple):
    """One cell with its oracle.

    Attributes:
        factory: the public name of the cell in scanrnn.cells.
        make: makes the cell, given options that change no equation.
        oracle: the step of the cell in NumPy.
        in_features: D.
        gemms: the numbers of matrix products and convolutions in the forward and the
            reverse loop of training; None if the planner would make no loop.
        spatial: sizes of the axes between the batch and the features.
        draw: draws parameters in float64 from a generator and shapes, for cells where
            normal numbers have no meaning.
        reachable: changes a carry to one that the cell can reach.
    """

    factory: str
    make: Callable
    oracle: Callable
    in_features: int = 3
    gemms: tuple[int, int] | None = (1, 1)
    spatial: tuple[int, ...] = ()
    draw: Callable = lambda generator, shapes: {
        name: generator.normal(size=shape) for name, shape in shapes.items()
    }
    reachable: Callable = lambda carry: carry

    @property
    def cell(self):
        return self.make()


def row(factory, oracle, *, inner=None, **options):
    """A row for a factory and its options; it may wrap the cell of the row `inner`."""
    fields = {k: options.pop(k) for k in Row._fields if k in options}

    def make(**others):
        if inner is None:
            return getattr(cells, factory)(**options, **others)
        return getattr(cells, factory)(inner.make(**others), **options)

    return Row(factory, make, oracle, **fields)


NORMS = (None, "ba2016")
INTEGRATIONS = ("additive", "multiplicative")


def _common():
    """The common cells, with each norm and each integration."""
    families = {
        "elman": ("elman", {}, functools.partial(gated.elman, np.tanh)),
        "elman_relu": (
            "elman",
            {"activation": "relu"},
            functools.partial(gated.elman, gated.relu),
        ),
        "lstm": ("lstm", {}, gated.lstm),
        "gru": ("gru", {}, gated.gru),
    }
    for name, norm, integration in itertools.product(families, NORMS, INTEGRATIONS):
        factory, options, oracle = families[name]
        parts = [name]
        parts += ["norm"] if norm else []
        parts += ["mi"] if integration == "multiplicative" else []
        options = {**options, "norm": norm, "integration": integration}
        yield "-".join(parts), row(factory, oracle(norm=norm), **options)


def _dialects():
    """Norms in each dialect, and the dialects of the GRU."""
    for norm in ("fastrnns", "tfa", "tf", "praxis", "rms"):
        yield f"lstm-{norm}", row("lstm", gated.lstm(norm), norm=norm)
    yield (
        "lstm-tf-mi",
        row("lstm", gated.lstm("tf"), norm="tf", integration="multiplicative"),
    )
    yield "elman-praxis", row("elman", gated.elman(np.tanh, "praxis"), norm="praxis")
    for norm in ("fastrnns", "tfa", "rms"):
        yield f"gru-{norm}", row("gru", gated.gru(norm), norm=norm)
    for dialect, norm in itertools.product(("cho2014", "haiku"), (None, "tf")):
        name = f"gru-{dialect}" + (f"-{norm}" if norm else "")
        oracle = gated.gru(norm, dialect)
        yield name, row("gru", oracle, gemms=(2, 2), dialect=dialect, norm=norm)


def _parts():
    """Further options of an LSTM, and recurrent matrices with heads."""
    yield "lstm-peephole", row("lstm", gated.lstm(), peephole=True)
    yield "lstm-coupled", row("lstm", gated.lstm(coupled=True), coupled=True)
    yield "lstm-projection", row("lstm", gated.lstm(), gemms=(2, 2), projection=2)
    yield "lstm-clip", row("lstm", gated.lstm(clip=0.5), cell_clip=0.5)
    yield (
        "lstm-everything",
        row(
            "lstm",
            gated.lstm("ba2016", coupled=True, heads=2),
            gemms=(2, 2),
            norm="ba2016",
            integration="multiplicative",
            peephole=True,
            coupled=True,
            projection=2,
            heads=2,
        ),
    )
    yield "elman-heads", row("elman", gated.elman(np.tanh, heads=2), heads=2)
    yield "lstm-heads", row("lstm", gated.lstm(heads=2), heads=2)
    yield "gru-heads", row("gru", gated.gru(heads=2), heads=2)
    yield (
        "gru-cho2014-heads",
        row(
            "gru",
            gated.gru(dialect="cho2014", heads=2),
            gemms=(2, 2),
            dialect="cho2014",
            heads=2,
        ),
    )


def _unbiased(inner):
    """Cells without biases. The biases of the oracle are zero."""
    names = "lstm gru slstm conv_gru-cudnn rhn-2-uncoupled sru mlstm"
    for name in names.split():
        row = inner[name]
        yield (
            f"{name}-unbiased",
            row._replace(
                make=functools.partial(row.make, use_bias=False),
                oracle=functools.partial(_of_zero_biases, row),
            ),
        )


def _of_zero_biases(row, params, carry, x):
    shapes = param_types(row.cell, row.in_features, H)
    zeros = {n: np.zeros(p.shape) for n, p in shapes.items() if n not in params}
    return row.oracle(zeros | params, carry, x)


def _few_gates():
    """Cells with one gate, without gates, or with matrix products in series."""
    families = {
        "mgu": (minimal.mgu, (1, 1)),
        "ugrnn": (minimal.ugrnn, (1, 1)),
        "multiplicative_lstm": (minimal.multiplicative_lstm, (2, 2)),
    }
    for name, norm, integration in itertools.product(families, NORMS, INTEGRATIONS):
        oracle, gemms = families[name]
        parts = [name]
        parts += ["norm"] if norm else []
        parts += ["mi"] if integration == "multiplicative" else []
        options = {"norm": norm, "integration": integration, "gemms": gemms}
        yield "-".join(parts), row(name, oracle(norm=norm), **options)
    for norm, integration in itertools.product((None, "tf"), INTEGRATIONS):
        parts = ["mgu-zhou2016", *([norm] if norm else [])]
        parts += ["mi"] if integration == "multiplicative" else []
        options = {"dialect": "zhou2016", "norm": norm, "integration": integration}
        oracle = minimal.mgu(norm, "zhou2016")
        yield "-".join(parts), row("mgu", oracle, gemms=(2, 2), **options)
    yield "ugrnn-heads", row("ugrnn", minimal.ugrnn(heads=2), heads=2)
    oracle, dialect = minimal.multiplicative_lstm(None, "krause2016"), "krause2016"
    name = "multiplicative_lstm"
    yield f"{name}-{dialect}", row(name, oracle, gemms=(2, 2), dialect=dialect)
    for depth, coupled in ((3, True), (1, True), (2, False)):
        oracle, gemms = minimal.rhn(depth, coupled), (depth, depth)
        name = f"rhn-{depth}" + ("" if coupled else "-uncoupled")
        yield name, row("rhn", oracle, gemms=gemms, depth=depth, coupled=coupled)


def _elementwise():
    """Cells with no matrix product in the loop."""
    none, relu = {"gemms": (0, 0)}, minimal.indrnn(gated.relu)
    yield "indrnn", row("indrnn", relu, **none)
    oracle = minimal.indrnn(np.tanh)
    yield "indrnn-tanh", row("indrnn", oracle, activation="tanh", **none)
    yield "indrnn-mi", row("indrnn", relu, integration="multiplicative", **none)
    yield "sru", row("sru", elementwise.sru(), **none)
    square = {"highway_bias": -1.0, "in_features": H}
    yield "sru-square", row("sru", elementwise.sru(highway_bias=-1.0), **square, **none)
    oracle = elementwise.sru(np.tanh, scaled=False)
    yield "sru-tanh", row("sru", oracle, activation="tanh", scaled=False, **none)
    yield "sru-first", row("sru", elementwise.sru(), peephole=False, **none)
    for window, pooling in itertools.product((1, 2), ("fo", "f", "ifo")):
        options = {"window": window, "pooling": pooling}
        yield (
            f"qrnn-{window}-{pooling}",
            row("qrnn", elementwise.qrnn(pooling), **options, **none),
        )
    oracle = elementwise.qrnn(inverted=True)
    yield "qrnn-pytorch", row("qrnn", oracle, dialect="pytorch-qrnn", **none)


def _conv():
    """Convolutions over one, two and three axes, with odd and even kernel sizes."""
    line = {"kernel_size": 3, "spatial": (3,)}
    plane = {"kernel_size": (2, 2), "spatial": (3, 2), "in_features": 1}
    solid = {"kernel_size": (2, 1, 2), "spatial": (1, 2, 2), "in_features": 1}
    yield "conv_lstm", row("conv_lstm", conv.lstm, **line)
    yield "conv_lstm-2d", row("conv_lstm", conv.lstm, **plane)
    yield "conv_lstm-3d", row("conv_lstm", conv.lstm, **solid)
    yield "conv_lstm-peephole", row("conv_lstm", conv.lstm, peephole=True, **plane)
    yield "conv_gru", row("conv_gru", conv.gru, gemms=(2, 2), **line)
    yield "conv_gru-2d", row("conv_gru", conv.gru, gemms=(2, 2), **plane)
    after = {"oracle": conv.gru_reset_after, "dialect": "cudnn"}
    yield "conv_gru-cudnn", row("conv_gru", **after, **line)
    yield "conv_gru-cudnn-3d", row("conv_gru", **after, **solid)


def _wrapped(inner):
    """Cells that wrap other cells, in evaluation."""
    for name in ("lstm-norm", "gru"):
        oracle = gated.residual(inner[name].oracle)
        yield (
            f"residual-{name}",
            row("residual", oracle, inner=inner[name], in_features=H),
        )
    lstm, gru = inner["lstm"], inner["gru"]
    oracle = gated.highway(lstm.oracle)
    yield "highway-lstm", row("highway", oracle, inner=lstm, in_features=H)
    oracle = gated.zoneout(lstm.oracle, 0.1, 0.3)
    yield "zoneout-lstm", row("zoneout", oracle, inner=lstm, h=0.1, c=0.3)
    yield "dropout-gru", row("dropout", gru.oracle, inner=gru, input=0.5, output=0.5)
    yield "weight_drop-lstm", row("weight_drop", lstm.oracle, inner=lstm, rate=0.5)
    yield "learned_carry-lstm", row("learned_carry", lstm.oracle, inner=lstm)


def _linear():
    """Recurrences that are linear in the carry: no matrix multiplies it."""
    for candidate, function in (("linear", linear.identity), ("positive", linear.g)):
        options = {"candidate": candidate, "gemms": (0, 0)}
        yield f"mingru-{candidate}", row("mingru", linear.mingru(function), **options)
        oracle = linear.minlstm(function)
        yield f"minlstm-{candidate}", row("minlstm", oracle, **options)
    yield "lru", row("lru", linear.lru, gemms=(0, 0))
    options = {"gemms": (0, 0), "projection": 3, "skip": "diagonal"}
    yield "lru-diagonal", row("lru", linear.lru, **options)
    for heads in (1, 2):
        name = "rglru" + ("-heads" if heads > 1 else "")
        options = {"gemms": (0, 0), "in_features": H, "heads": heads}
        yield name, row("rglru", linear.rglru(heads), **options)


def _xlstm():
    """The cells of xLSTM, with each forget gate, normaliser and number of heads."""
    everything = {"norm": "ba2016", "integration": "multiplicative", "heads": 2}
    for name, oracle, options in (
        ("slstm", xlstm.slstm(), {}),
        ("slstm-exp", xlstm.slstm("exp"), {"forget": "exp"}),
        ("slstm-clamped", xlstm.slstm(least=1.0), {"normalizer": "clamped"}),
        ("slstm-epsilon", xlstm.slstm(least=1e-6), {"normalizer": "epsilon"}),
        ("slstm-heads", xlstm.slstm(heads=2), {"heads": 2}),
        ("slstm-everything", xlstm.slstm(norm="ba2016", heads=2), everything),
    ):
        yield name, row("slstm", oracle, reachable=_weighted, **options)
    for name, oracle, options in (
        ("mlstm", xlstm.mlstm(), {}),
        ("mlstm-exp", xlstm.mlstm("exp"), {"forget": "exp"}),
        ("mlstm-clamped", xlstm.mlstm(clamped=True), {"normalizer": "clamped"}),
        ("mlstm-heads", xlstm.mlstm(), {"heads": 2}),
    ):
        yield name, row("mlstm", oracle, gemms=(0, 0), **options)


def _memories():
    """Linear attention and state spaces: the carry has a matrix for every head."""
    for name, oracle, options in (
        ("gla", memories.gla, {"rank": 2}),
        ("deltanet", memories.deltanet(), {}),
        ("gated_deltanet", memories.deltanet(gated=True), {}),
        ("rwkv7", memories.rwkv7, {"rank": 2}),
        ("mamba2", memories.mamba2, {"state": 3}),
    ):
        yield name, row(name, oracle, gemms=(0, 0), heads=2, **options)
        yield f"{name}-head", row(name, oracle, gemms=(0, 0), **options)
    options = {"rank": 2, "heads": 2, "norm": True}
    yield "rwkv7-norm", row("rwkv7", memories.rwkv7, gemms=(0, 0), **options)


def _weighted(carry):
    """The normaliser is a sum of positive weights, so it cannot be negative."""
    return carry._replace(n=np.abs(carry.n))


CELLS = dict(_common())
CELLS |= dict(_dialects()) | dict(_parts()) | dict(_wrapped(CELLS))
CELLS |= dict(_few_gates()) | dict(_elementwise())
CELLS |= dict(_linear()) | dict(_xlstm()) | dict(_memories())
CELLS |= dict(_conv())
CELLS |= dict(_unbiased(CELLS))

# One row for each public name, for tests where the options do not matter.
_FIRST: dict[str, str] = {}
for _name, _row in CELLS.items():
    _FIRST.setdefault(_row.factory, _name)
ONE_OF_EACH = {name: CELLS[name] for name in _FIRST.values()}


# The quick tests take one row for each name, and the row with the most options. For the
# memories with a matrix for every head, two rows are enough.
QUICK = {*ONE_OF_EACH, "lstm-norm-mi"} - {"gla", "deltanet", "rwkv7"}


def _rows(names) -> list:
    marks = {name: () if name in QUICK else pytest.mark.slow for name in names}
    return [pytest.param(CELLS[n], id=n, marks=mark) for n, mark in marks.items()]


EVERY, ONE_ROW_EACH = _rows(CELLS), _rows(ONE_OF_EACH)


@functools.cache
def _shapes(cell, *sizes) -> dict[str, tuple[int, ...]]:
    """The shapes of the params by name, in the order in which `init` makes them.

    `init` is traced alone: to run it would compile a program for each shape.
    """
    found = {}

    def look(key):
        found.update({k: v.shape for k, v in cell.init(key, *sizes).items()})

    jax.eval_shape(look, jax.random.key(0))
    return found


def draw(row, seed=0, features=H) -> tuple[dict, np.ndarray, Any]:
    """Params, xs `[T, B, *spatial, D]` and a first carry, all random, in float64.

    The params are not those of `init`, so that no gain is one and no bias is zero.
    Cells whose D is H have as many inputs as `features`.
    """
    in_features = features if row.in_features == H else row.in_features
    generator = np.random.default_rng(seed)
    cell = row.cell
    params = row.draw(generator, _shapes(cell, in_features, features))
    xs = generator.normal(size=(T, B, *row.spatial, in_features))
    zeros = cell.initial_carry(params, xs[0])
    carry = type(zeros)(*(generator.normal(size=field.shape) for field in zeros))
    return params, xs, row.reachable(carry)
