"""Arguments that no export can use are refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import scanrnn
from scanrnn.interop import save_safetensors
from scanrnn.serving import Input, _size, to_onnx, to_stablehlo
from tests.onnx_run import operators

GRU = scanrnn.nnx.GRU(3, 4, rngs=nnx.Rngs(0))
X = {"x": (2,)}


@pytest.mark.parametrize("export", [to_onnx, to_stablehlo])
@pytest.mark.parametrize(
    ("model", "inputs", "error", "match"),
    [
        (GRU, [("batch", "sequence", 3)], TypeError, "inputs is a list, want a dict"),
        (GRU, {1: (2, 3)}, ValueError, "input 1 is not a valid name"),
        (
            GRU,
            {"x": (-1, "t", 3)},
            ValueError,
            r"input 'x' has the shape \(-1, 't', 3\)",
        ),
        (
            GRU,
            {"x": (None, None, 3)},
            ValueError,
            "input 'x' has the shape .* left open",
        ),
        (GRU, {"x": (2.0, 5, 3)}, ValueError, "input 'x' has the shape"),
        (GRU, {"x": "abc"}, ValueError, "input 'x' has the shape 'abc'"),
        (GRU, {"x": 3}, ValueError, "input 'x' has the shape 3, want"),
        (None, X, TypeError, "model is of type NoneType, want a l"),
        (scanrnn.nnx.GRU, X, TypeError, "model is the class GRU, want an object of it"),
        (lambda x: None, X, ValueError, "the program has no output; return at least"),
        (
            lambda a, b: a - b,
            {"b": (3,), "a": (3,)},
            ValueError,
            "inputs has the order b, a, but the function takes a, b; .* by position",
        ),
        (
            jnp.sin,
            {"x": Input((3,), "foo")},
            TypeError,
            "the dtype of input 'x' must be a dtype such as 'float32', got 'foo'",
        ),
        (
            scanrnn.nnx.Bidirectional(GRU, GRU),
            None,
            ValueError,
            "carry, .* for this Bidirectional give inputs={name",
        ),
        (
            scanrnn.nnx.RNNCell(scanrnn.cells.gru(), 3, 4, rngs=nnx.Rngs(0)),
            None,
            ValueError,
            r"carry, .* an RNN of .* as RNN\(cell\); for this RNNCell give inp",
        ),
        (scanrnn.linen.LSTM(4), X, TypeError, "model is a Linen module, .*apply"),
    ],
)
def test_a_model_or_inputs_of_another_form_are_refused(
    export, model, inputs, error, match
):
    with pytest.raises(error, match=f"^{export.__name__}: {match}"):
        export(model, inputs=inputs)


@pytest.mark.parametrize(
    ("outputs", "match"),
    [
        (["a", "a", "b"], "two inputs or outputs have the name 'a'"),
        (["input", "a", "b"], "two inputs or outputs have the name 'input'"),
        ("abc", "outputs='abc', want a list of names"),
        ([1, 2, 3], r"outputs=\[1, 2, 3\], want a list of names"),
    ],
)
def test_each_output_has_a_name_of_its_own(outputs, match):
    lstm = scanrnn.nnx.LSTM(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=f"^to_onnx: {match}"):
        to_onnx(lstm, carry=True, outputs=outputs)


@pytest.mark.parametrize("export", [to_onnx, to_stablehlo])
@pytest.mark.parametrize(
    ("name", "options"),
    [("lengths", {"lengths": True}), ("initial_h", {"carry": True})],
)
def test_an_input_is_not_named_as_one_that_an_option_adds(export, name, options):
    with pytest.raises(
        ValueError, match=f"^{export.__name__}: inputs has the name '{name}', which"
    ):
        export(GRU, inputs={name: ("batch", "time", 3)}, **options)


@pytest.mark.parametrize(
    ("kind", "options", "operator"),
    [
        ("LSTM", {"peephole": True}, "LSTM"),
        ("Elman", {"activation": "relu"}, "RNN"),
        ("GRU", {"dialect": "cho2014"}, "GRU"),
        ("LSTM", {"norm": "ba2016"}, "Scan"),
        ("Elman", {"use_bias": False}, "Scan"),
        ("LSTM", {"projection": 2}, "Scan"),
        ("LSTM", {"coupled": True}, "Scan"),
        ("GRU", {"dialect": "haiku"}, "Scan"),
        ("GRU", {"param_dtype": jnp.bfloat16}, "Scan"),
    ],
)
def test_loops_become_the_operators_that_the_guide_names(kind, options, operator):
    layer = getattr(scanrnn.nnx, kind)(3, 4, rngs=nnx.Rngs(0), **options)
    found = operators(to_onnx(layer))
    assert [op for op in ("LSTM", "GRU", "RNN", "Scan") if found[op]] == [operator]


@pytest.mark.parametrize("export", [to_onnx, to_stablehlo])
def test_weights_that_a_file_cannot_hold_are_refused(tmp_path, monkeypatch, export):
    monkeypatch.setattr(_size, "LARGEST", 10_000)
    export(GRU)
    name = rf"{export.__name__}: the weights have .* GB, and .*; export the model in"
    with pytest.raises(ValueError, match=name):
        export(scanrnn.nnx.GRU(3, 64, rngs=nnx.Rngs(0)), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_sizes_that_jax_leaves_open_are_taken():
    size, _ = jax.export.symbolic_shape("n, m")
    exported = to_stablehlo(jnp.sin, inputs={"x": Input((size,))}, platforms="cpu")
    assert exported.call(jnp.zeros(5, "float32"))[0].shape == (5,)


def test_one_platform_may_be_given_by_its_name():
    assert to_stablehlo(GRU, platforms="cpu").platforms == ("cpu",)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"platforms": ("foo",)},
            r"platforms=\('foo',\), want .*'cpu', 'cuda'.*'tpu'$",
        ),
        ({"platforms": "gpu"}, "platforms='gpu', .*on a GPU that is 'cuda' or 'rocm'"),
        ({"platforms": ()}, r"platforms=\(\), want"),
        ({"gradients": -1}, "gradients=-1, want"),
        ({"gradients": 1.0}, "gradients=1.0, want"),
    ],
)
def test_platforms_and_gradients_that_do_not_exist_are_refused(options, match):
    with pytest.raises(ValueError, match=f"^to_stablehlo: {match}"):
        to_stablehlo(GRU, **options)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: to_onnx(GRU, path),
        lambda path: to_stablehlo(GRU, path, platforms="cpu"),
        lambda path: save_safetensors(path, {"a": np.zeros(2)}),
    ],
    ids=["onnx", "stablehlo", "safetensors"],
)
def test_a_path_that_cannot_be_written_is_named_as_it_was_given(tmp_path, write):
    path = tmp_path / "nowhere" / "model"
    with pytest.raises(FileNotFoundError, match=f"write '{path}': there is no folder"):
        write(path)
    with pytest.raises(IsADirectoryError, match=f"write '{tmp_path}': it is a folder"):
        write(tmp_path)
    with pytest.raises(TypeError, match="path is of type int, want "):
        write(3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", [to_onnx, to_stablehlo])
@pytest.mark.parametrize("name", ["carry", "lengths"])
@pytest.mark.parametrize("value", [np.array([3, 1]), "yes", 1])
def test_an_input_to_add_is_asked_for_by_true_or_false(export, name, value):
    with pytest.raises(TypeError, match=f"^{export.__name__}: {name} must be True or"):
        export(GRU, **{name: value})


@pytest.mark.parametrize("export", [to_onnx, to_stablehlo])
def test_ids_that_were_taken_as_floats_are_named(export, tmp_path):
    embed = nnx.Embed(5, 3, rngs=nnx.Rngs(0))
    named = {"outputs": ["y"]} if export is to_onnx else {}
    inputs = {"ids": ("b", 4)}
    with pytest.raises(ValueError, match="must be an integer") as raised:
        export(lambda ids: embed(ids), tmp_path / "x", inputs=inputs, **named)
    note = "".join(raised.value.__notes__)
    assert "called with ids as float32; for another dtype give scanrnn" in note
