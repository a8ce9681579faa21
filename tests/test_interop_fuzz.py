"""For any input, a reader returns weights or raises one of its documented errors.

Files have other tests, near those of their readers: safetensors, StableHLO programs,
the plans that the tuner keeps, checkpoints.
"""

import contextlib
import copy
import functools
import json
import warnings

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scanrnn
from scanrnn import cells, interop
from scanrnn._tune import memory
from scanrnn.serving import Streaming
from scanrnn.training import Config

quickly = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SHAPES = st.lists(st.integers(0, 12), max_size=3).map(tuple)
ARRAYS = SHAPES.map(lambda shape: np.zeros(shape, np.float32))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


def names(*known):
    return st.sampled_from(known) | st.text(max_size=8)


def read(function, *arguments):
    """The result of a reader, or None if it raises an error with a good message."""
    try:
        return function(*arguments)
    except ValueError as error:
        assert str(error)
        return None


LIBRARIES = {
    "torch": ("lstm", {}),
    "torch-projection": ("lstm", {"projection": 2}),
    "torch-gru": ("gru", {}),
    "keras": ("gru", {}),
    "linen": ("gru", {}),
    "linen-conv": ("conv_lstm", {"kernel_size": 3}),
    "nnx": ("lstm", {}),
    "haiku": ("lstm", {}),
    "equinox": ("gru", {}),
    "cudnn": ("lstm", {}),
}


@functools.cache
def theirs(library):
    """The weights of a library, and the function that reads them."""
    factory, options = LIBRARIES[library]
    cell, name = getattr(cells, factory)(**options), library.partition("-")[0]
    layers = []
    for size in (3, 5 if "projection" not in options else 2):
        params = cell.init(jax.random.key(0), size, 5)
        layers.append([{k: np.asarray(v) for k, v in params.items()}])
    weights = interop.Weights(cell, layers)
    read = getattr(interop, f"from_{name}")
    assert weights.num_layers == 2
    if name == "cudnn":
        return interop.to_cudnn(weights), lambda flat: read(flat, 3, 5, 2)
    if name == "haiku":
        return interop.to_haiku(weights), lambda p: read(p, ["lstm", "lstm_1"])
    return getattr(interop, f"to_{name}")(weights), read


def spoilt(data, tree):
    """The tree, with one thing removed or changed."""
    if not isinstance(tree, dict | list) or not tree:
        return data.draw(ARRAYS | JSON)
    tree = tree.copy()
    place = data.draw(
        st.sampled_from(sorted(tree) if isinstance(tree, dict) else range(len(tree)))
    )
    if data.draw(st.integers(0, 3)) == 0:
        del tree[place]
    else:
        tree[place] = spoilt(data, tree[place])
    return tree


@pytest.mark.slow
@quickly
@pytest.mark.parametrize("library", LIBRARIES)
@given(data=st.data())
def test_spoilt_weights_of_a_library_are_read_or_refused(library, data):
    tree, from_library = theirs(library)
    tree = copy.deepcopy(tree)
    for _ in range(data.draw(st.integers(1, 2))):
        tree = spoilt(data, tree)
    weights = read(from_library, tree)
    assert weights is None or weights.num_layers >= 1


@quickly
@pytest.mark.parametrize("library", LIBRARIES)
@given(junk=JSON | ARRAYS | st.lists(ARRAYS, max_size=6))
def test_junk_is_refused(library, junk):
    assert read(theirs(library)[1], junk) is None or isinstance(junk, list)


STREAM = Streaming(scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0)), 2)
GOOD = STREAM.state()


@quickly
@given(st.dictionaries(names("carry.h", "open"), ARRAYS | JSON, max_size=3))
def test_any_state_of_streams_is_restored_or_refused(state):
    with contextlib.suppress(ValueError):
        STREAM.restore(state)
    assert {k: (a.shape, a.dtype) for k, a in STREAM.state().items()} == {
        k: (a.shape, a.dtype) for k, a in GOOD.items()
    }


FIELDS = names("out", "features", "layers", "dtype", "seed", "held_out", "steps")


def made(values):
    try:
        return Config.from_mapping(values)
    except (TypeError, ValueError) as error:
        assert str(error)


@quickly
@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_config_is_made_or_refused(values):
    config = made(values)
    assert config is None or all(getattr(config, k) == v for k, v in values.items())


@quickly
@given(content=JSON | st.fixed_dictionaries({"format": st.just(1), "key": JSON}))
def test_any_file_of_the_tuner_is_read_or_refused(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert memory.recalled(path, {"step": "x"}, {}) is None


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_half_a_file_of_the_tuner_is_refused(tmp_path, cut):
    path = tmp_path / "plan.json"
    path.write_bytes(b'{"format": 1, "key": {"step": 1}}'[:cut])
    with pytest.warns(UserWarning, match="cannot be used"):
        assert memory.recalled(path, {"step": "x"}, {}) is None
