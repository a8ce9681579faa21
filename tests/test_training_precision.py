"""The policy of types."""

import jax.numpy as jnp
import pytest

from scanrnn.training import Precision

REFUSED = [
    ("compute", "compute: got 'compute', want a type"),
    ("weights=float32", "got 'weights=float32', want kind=type with a kind of params,"),
    ("compute=int8", "compute: got int8, want a floating-point type"),
    ("params=bfloat16", "params: got bfloat16, in which most updates would round"),
]


@pytest.mark.parametrize("text, message", REFUSED, ids=lambda x: x.split(":")[0])
def test_precision_refuses_what_cannot_work(text, message):
    with pytest.raises(ValueError, match=message):
        Precision.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "params=float32,compute=bfloat16,carry=float32,output=float32",
        "params=float64,compute=float16,carry=bfloat16,output=float16",
        "bfloat16,rnn.carry=bfloat16, readout.compute=float32",
        "",
    ],
)
def test_precision_is_read_as_it_is_written(text):
    precision = Precision.parse(text)
    assert Precision.parse(str(precision)) == precision


def test_precision_of_a_layer_is_the_rest_of_the_policy():
    precision = Precision.parse("bfloat16,carry=bfloat16,readout.compute=float32")
    assert precision.at("readout").carry == jnp.bfloat16
    assert precision.layer_options("readout")["dtype"] == jnp.float32
    assert precision.layer_options("rnn") == {
        "dtype": jnp.bfloat16,
        "param_dtype": jnp.float32,
        "carry_dtype": jnp.bfloat16,
    }


@pytest.mark.parametrize(
    "text, needs",
    [("float16", True), ("bfloat16", False), ("a.output=float16", True), ("", False)],
)
def test_precision_knows_when_gradients_need_scaling(text, needs):
    assert Precision.parse(text).needs_scaling is needs
