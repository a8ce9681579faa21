"""Weights in safetensors files: exact, complete, and safe to read."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scanrnn
from scanrnn.interop import load_safetensors, save_safetensors

WEIGHTS = scanrnn.interop.Weights.of(scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0)))
DTYPES = ["float16", "float32", "float64", "bfloat16", "int8", "uint32", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_however_they_lie_in_memory(tmp_path, dtype):
    a = np.arange(24).reshape(2, 3, 4).astype(jnp.dtype(dtype))
    tree = {
        "rows": a,
        "turned": a.T,
        "sliced": a[:, ::2],
        "backwards": a[::-1],
        "broadcast": np.broadcast_to(a[0, 0], (3, 4)),
        "scalar": a[0, 1, 2],
        "empty": a[:0],
        "jax": jnp.asarray(a[0].T),
    }
    save_safetensors(tmp_path / "a", tree)
    got = load_safetensors(tmp_path / "a")
    assert set(got) == set(tree)
    for name, value in tree.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)


def test_foreign_byte_order_is_turned(tmp_path):
    a = np.arange(3, dtype=">f4")
    save_safetensors(tmp_path / "a", {"a": a})
    np.testing.assert_array_equal(load_safetensors(tmp_path / "a")["a"], a)


def test_torch_reads_what_we_write_and_we_what_it_writes(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    layer = torch.nn.LSTM(3, 5, num_layers=2)
    save_file(layer.state_dict(), tmp_path / "theirs")
    weights = scanrnn.interop.from_torch(load_safetensors(tmp_path / "theirs"))
    save_safetensors(tmp_path / "ours", scanrnn.interop.to_torch(weights))
    other = torch.nn.LSTM(3, 5, num_layers=2)
    other.load_state_dict(load_file(tmp_path / "ours"))
    xs = torch.ones(7, 2, 3)
    torch.testing.assert_close(layer(xs)[0], other(xs)[0], rtol=1e-6, atol=1e-6)


def test_a_module_comes_back_as_one(tmp_path):
    def make(seed):
        return scanrnn.nnx.GRU(3, 5, bidirectional=True, rngs=nnx.Rngs(seed))

    layer, xs = make(0), jnp.ones([2, 7, 3])
    save_safetensors(tmp_path / "a", layer)
    assert "layers.0.kernel" in load_safetensors(tmp_path / "a")
    got = load_safetensors(tmp_path / "a", like=make(1))
    np.testing.assert_array_equal(got(xs), layer(xs))


@pytest.mark.parametrize(
    "like, match",
    [
        ({"b": np.ones(3)}, r"has the arrays \['a'\], want \['b'\]"),
        ({"a": np.ones(4)}, r"float64\[3\], want float64\[4\]"),
        ({"a": np.ones(3, np.int32)}, r"want int32\[3\]"),
    ],
)
def test_another_tree_is_refused(tmp_path, like, match):
    save_safetensors(tmp_path / "a", {"a": np.ones(3)})
    with pytest.raises(ValueError, match=match):
        load_safetensors(tmp_path / "a", like=like)


@pytest.mark.parametrize("leaf", [jax.random.key(0), "text", np.array([None]), 1j])
def test_what_is_no_array_of_numbers_is_refused_and_leaves_nothing(tmp_path, leaf):
    with pytest.raises(TypeError, match="'a' "):
        save_safetensors(tmp_path / "a", {"a": leaf})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "exchanged, tree, match",
    [
        (True, {"a": np.ones(3)}, r"path is of type dict, .* are \(path, tree\)"),
        (False, WEIGHTS, r"tree is of type Weights, want arrays: weights.tree\(\)"),
        (False, {"a": 1j}, "'a' has dtype complex128, want real numbers; save .real"),
        (False, {"a": "text"}, "'a' has dtype <U4, want real numbers$"),
        (False, {"a": jnp.ones(3, "float8_e4m3fn")}, "'a' has dtype float8_e4m3fn, wh"),
        (False, {"a": jnp.ones(3, "int4")}, "'a' has dtype int4, which .* to int8$"),
    ],
)
def test_arguments_of_another_form_are_refused(tmp_path, exchanged, tree, match):
    arguments = tmp_path / "a", tree
    with pytest.raises(TypeError, match=f"^save_safetensors: {match}"):
        save_safetensors(*(reversed(arguments) if exchanged else arguments))


def test_weights_are_saved_as_their_tree_and_read_like_it(tmp_path):
    save_safetensors(tmp_path / "a", WEIGHTS.tree())
    got = load_safetensors(tmp_path / "a", like=WEIGHTS.tree())
    same = scanrnn.interop.Weights.from_tree(WEIGHTS.cell, got).layer()
    xs = jnp.ones([2, 7, 3])
    np.testing.assert_array_equal(same(xs), WEIGHTS.layer()(xs))


def test_a_number_is_saved_as_an_array(tmp_path):
    save_safetensors(tmp_path / "a", {"a": 1.5, "b": 2})
    got = load_safetensors(tmp_path / "a", like={"a": 0.0, "b": 0})
    assert (got["a"].shape, got["a"], got["b"]) == ((), 1.5, 2)
    with pytest.raises(ValueError, match=r"'b' of .* is int64\[\], want float64\[\]"):
        load_safetensors(tmp_path / "a", like={"a": 0.0, "b": 0.0})


def test_two_arrays_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"two arrays have the name 'a\.b'"):
        save_safetensors(tmp_path / "a", {"a": {"b": np.ones(1)}, "a.b": np.ones(1)})


def test_a_write_that_fails_leaves_the_older_file(tmp_path, monkeypatch):
    save_safetensors(tmp_path / "a", {"a": np.ones(3)})

    def full(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match="disk full"):
        save_safetensors(tmp_path / "a", {"a": np.zeros(3)})
    assert os.listdir(tmp_path) == ["a"]
    assert load_safetensors(tmp_path / "a")["a"].tolist() == [1, 1, 1]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_safetensors(tmp_path / "nowhere")


HEADERS = [
    b"",
    b"\x80\x04K\x01.",  # a pickle
    (2**63).to_bytes(8, "little") + b"{}",
    (2**40).to_bytes(8, "little"),
    (2).to_bytes(8, "little") + b"[]",
    (62).to_bytes(8, "little")
    + b'{"a":{"dtype":"F32","shape":[99999999],"data_offsets":[0,4]}}  '[:62]
    + b"\0\0\0\0",
    (68).to_bytes(8, "little")
    + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400000000000]}}   '[:68]
    + b"\0\0\0\0",
]


@pytest.mark.parametrize("content", HEADERS)
def test_hostile_headers_are_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        load_safetensors(tmp_path / "a")


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_files_are_read_as_arrays_or_refused(tmp_path, data):
    path, tree = tmp_path / "a", {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(3)}
    save_safetensors(path, tree)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.integers(0, 255)
        )
    content = content[: data.draw(st.integers(0, len(content)))] + data.draw(
        st.binary(max_size=3)
    )
    path.write_bytes(bytes(content))
    try:
        got = load_safetensors(path)
    except ValueError as error:
        assert "cannot be read as safetensors" in str(error)
        return
    assert all(isinstance(value, np.ndarray) for value in got.values())
