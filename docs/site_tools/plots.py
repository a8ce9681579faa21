"""A small picture of each cell: what it answers to a pulse, and how far it remembers.

Drawn when the site is built, from the cells themselves, into `docs/cells/images`.
"""

import functools
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from scanrnn import cells
from site_tools import names

STEPS, PULSE, FEATURES, PLACES = 60, 5, 8, 9
INK = "#1f4e79"


def setup(app):
    """Draws before Sphinx reads the pages, which look for the pictures."""
    app.connect("builder-inited", lambda app: draw_all(Path(app.confdir)))
    return {"parallel_read_safe": True}


def draw_all(docs: Path) -> None:
    """Draws what is missing or older than this file.

    Args:
        docs: the folder of the pages.
    """
    folder = docs / "cells" / "images"
    folder.mkdir(exist_ok=True)
    with jax.enable_x64(False):
        for name in names.cells_and_wrappers()[0]:
            path = folder / f"{name}.png"
            newest = max(Path(__file__).stat().st_mtime, _source(name).stat().st_mtime)
            if not path.exists() or path.stat().st_mtime < newest:
                draw(name, path)


def _source(name):
    return Path(inspect.getfile(getattr(cells, name)))


def draw(name: str, path: Path) -> None:
    """Draws one cell.

    Args:
        name: of its factory.
        path: of the picture.
    """
    spatial = "conv" in name
    cell = getattr(cells, name)(**({"kernel_size": 3} if spatial else {}))
    params = cell.init(jax.random.key(0), FEATURES, FEATURES)
    shape = (STEPS, 1, *([PLACES] if spatial else []), FEATURES)
    at = PLACES // 2 if spatial else slice(None)
    xs = jnp.zeros(shape).at[PULSE, 0, at].set(2.0)
    response = _run(cell, params, xs).reshape(STEPS, -1, FEATURES)
    noise = jax.random.normal(jax.random.key(1), shape)
    _save(path, response[:, response.shape[1] // 2], _memory(cell, params, noise))


@functools.partial(jax.jit, static_argnums=0)
def _run(cell, params, xs):
    start = cell.initial_carry(params, xs[0])
    return jax.lax.scan(functools.partial(cell.step, params), start, xs)[1]


@functools.partial(jax.jit, static_argnums=0)
def _memory(cell, params, xs):
    """How much the last output changes with each input, by distance."""

    def last(xs, direction):
        return jnp.vdot(_run(cell, params, xs)[-1], direction)

    shape = jax.eval_shape(functools.partial(_run, cell), params, xs).shape[1:]
    directions = jax.random.normal(jax.random.key(2), (16, *shape))
    slopes = jax.vmap(jax.grad(last), (None, 0))(xs, directions)
    sizes = jnp.sqrt(jnp.sum(slopes**2, axis=(0, *range(2, slopes.ndim))))[::-1]
    return sizes / sizes[0]


def _save(path, response, memory):
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(response, color=INK, alpha=0.6, linewidth=1.2)
    left.axvline(PULSE, color="gray", linewidth=0.8, linestyle=":")
    left.set(xlabel="step", ylabel="outputs", title="answer to a pulse")
    right.semilogy(jnp.maximum(memory, 1e-12), color=INK)
    right.set(xlabel="steps back", ylabel="relative gradient", title="memory")
    right.set_ylim(1e-6, 10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
