"""Layers as StableHLO: read back, and run in a process that has only JAX."""

import hashlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scanrnn
from scanrnn.serving import Input, load_stablehlo, to_stablehlo
from tests.onnx_run import xs

pytestmark = pytest.mark.usefixtures("in_32_bit")
SHAPES = [(1, 1), (3, 7), (2, 40)]


def make(kind="LSTM", *sizes, **options):
    sizes = sizes or (3, 5)
    return getattr(scanrnn.nnx, kind)(*sizes, rngs=nnx.Rngs(0), **options)


RUN = """
import sys
import numpy as np
import jax
from jax import export
call = export.deserialize(bytearray(open(sys.argv[1], "rb").read())).call
arrays = np.load(sys.argv[2])
count = sum(name.startswith("x") for name in arrays)
np.savez(sys.argv[3], *(call(arrays[f"x{k}"])[0] for k in range(count)))
assert not {"scanrnn", "flax"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_process_that_has_only_jax_computes_the_same(tmp_path):
    layer = make(num_layers=2, bidirectional=True, norm="ba2016")
    to_stablehlo(layer, tmp_path / "model")
    inputs = {f"x{k}": xs(*shape, 3) for k, shape in enumerate(SHAPES)}
    np.savez(tmp_path / "in.npz", **inputs)
    files = [str(tmp_path / name) for name in ("model", "in.npz", "out.npz")]
    subprocess.run([sys.executable, "-c", RUN, *files], check=True, timeout=120)
    with np.load(tmp_path / "out.npz") as outs:
        for k, x in enumerate(inputs.values()):
            np.testing.assert_allclose(outs[f"arr_{k}"], layer(x), atol=2e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RGLRU"])
def test_lengths_and_carries_come_in_and_go_out(tmp_path, kind):
    layer = make(kind, 4, 4)
    exported = to_stablehlo(layer, tmp_path / "model", carry=True, lengths=True)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    call = load_stablehlo(tmp_path / "model")
    for B, T in SHAPES:
        x, lengths = xs(B, T, 4), np.arange(B, dtype=np.int32) % (T + 1)
        carry, _ = layer(x, return_carry=True)
        last, ys = layer(x, seq_lengths=lengths, initial_carry=carry, return_carry=True)
        got = call(x, lengths, *jax.tree.leaves(carry))
        for one, wanted in zip(got, [ys, *jax.tree.leaves(last)], strict=True):
            np.testing.assert_allclose(one, wanted, atol=2e-6)


def test_a_function_goes_out_with_its_gradient(tmp_path):
    layer = make("GRU")
    inputs = {"xs": Input(("batch", "sequence", 3))}
    to_stablehlo(lambda x: layer(x).sum(), tmp_path / "m", inputs=inputs, gradients=1)
    call, x = load_stablehlo(tmp_path / "m"), xs(2, 7, 3)
    wanted = jax.grad(lambda x: layer(x).sum())(x)
    np.testing.assert_allclose(jax.grad(lambda x: call(x)[0])(x), wanted, atol=2e-6)


KINDS = [
    name
    for name, kind in vars(scanrnn.nnx).items()
    if isinstance(kind, type) and issubclass(kind, scanrnn.nnx.RNN)
]
KINDS.remove("RNN")


@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_alone_may_be_open(kind):
    """Estimates count its size as a number. The steps suffice for chunks of them."""
    convolves = kind.startswith("Conv")
    layer = make(kind, 16, 16, **{"kernel_size": 3} if convolves else {})
    shape = (32, 4, 16) if convolves else (32, 16)
    inputs = {"xs": ("batch", *shape)}
    exported = to_stablehlo(layer, inputs=inputs, platforms=("cpu",))
    for B in (1, 3):
        x = xs(B, *shape)
        np.testing.assert_allclose(exported.call(x)[0], layer(x), atol=1e-5)


@pytest.mark.parametrize(
    "content", [b"the bytes", to_stablehlo(jnp.sin, inputs={"x": (3,)})]
)
def test_a_program_is_read_from_a_path(content):
    kind = type(content).__name__
    with pytest.raises(TypeError, match=f"path is a {kind}, want where .* has `call`"):
        load_stablehlo(content)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\0" * 64, b"\xff" * 64])
def test_what_is_no_program_is_refused(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or was not written by"):
        load_stablehlo(tmp_path / "m")


def test_a_program_of_no_version_of_jax_is_refused(tmp_path):
    content = b"\x10\0\0\0 whatever"
    digest = hashlib.sha256(content).digest()
    (tmp_path / "m").write_bytes(content + b"scanrnn sha256 " + digest)
    with pytest.raises(ValueError, match="cannot be read as a program of this"):
        load_stablehlo(tmp_path / "m")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_stablehlo(tmp_path / "nowhere")


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_damaged_program_is_refused(program, tmp_path, data):
    content = bytearray(program)
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "m").write_bytes(bytes(content))
    with pytest.raises(ValueError, match="is damaged"):
        load_stablehlo(tmp_path / "m")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "m"
    to_stablehlo(jnp.sin, path, inputs={"x": ("n",)}, platforms=("cpu",))
    np.testing.assert_allclose(
        load_stablehlo(path)(np.ones(3, np.float32))[0], np.sin(1), atol=1e-6
    )
    return path.read_bytes()
