"""Every cell there is, with every option that changes its equations.

A new cell is one row here and one oracle in `oracles`; all tests go over this table.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from scanrnn import cells
from tests import oracles

T, B, H = 3, 2, 4


class Row(NamedTuple):
    factory: str  # the public name in scanrnn.cells
    make: Callable  # makes the cell, given options that change no equation
    oracle: Callable  # its step in NumPy
    in_features: int = 3

    @property
    def cell(self):
        return self.make()


_FAMILIES = {  # name: public factory, its first options, oracle
    "elman": ("elman", {"activation": "tanh"}, oracles.elman(np.tanh)),
    "elman_relu": ("elman", {"activation": "relu"}, oracles.elman(oracles.relu)),
    "lstm": ("lstm", {}, oracles.lstm),
    "gru": ("gru", {}, oracles.gru),
}
NORMS = (None, "ba2016")
INTEGRATIONS = ("additive", "multiplicative")


def _rows():
    for name, norm, integration in itertools.product(_FAMILIES, NORMS, INTEGRATIONS):
        factory, options, oracle = _FAMILIES[name]
        options = {**options, "norm": norm, "integration": integration}
        parts = [name]
        parts += ["norm"] if norm else []
        parts += ["mi"] if integration == "multiplicative" else []
        make = functools.partial(getattr(cells, factory), **options)
        yield "-".join(parts), Row(factory, make, oracle)


def _with_residual(row):
    def make(**options):
        return cells.residual(row.make(**options))

    return Row("residual", make, oracles.residual(row.oracle), in_features=H)


CELLS = dict(_rows())
CELLS |= {f"residual-{k}": _with_residual(CELLS[k]) for k in ("lstm-norm", "gru")}


def draw(row, seed=0):
    """Params, xs `[T, B, D]` and a first carry, none of them zero, in float64.

    The params are drawn and not initialised, so that no gain is one and no bias zero.
    """
    generator = np.random.default_rng(seed)
    cell = row.cell
    params = cell.init(jax.random.key(0), row.in_features, H)
    params = {k: generator.normal(size=v.shape) for k, v in params.items()}
    xs = generator.normal(size=(T, B, row.in_features))
    zeros = cell.initial_carry(params, xs[0])
    carry = type(zeros)(*(generator.normal(size=field.shape) for field in zeros))
    return params, xs, carry
