"""The policy of dtypes."""

import jax.numpy as jnp
import pytest

from scanrnn.machines import MACHINES, machine_of
from scanrnn.machines._table import _cpu
from scanrnn.training import Precision
from scanrnn.training._precision import explain, settle

REFUSED = [
    (
        "compute",
        "precision: got 'compute', want auto, float16, bfloat16, float32 or float64",
    ),
    ("carry=float8_e5m2", "carry: got float8_e5m2, want float16"),
    ("weights=float32", "got 'weights=float32', want kind=type with a kind of params,"),
    ("compute=int8", "compute: got int8, want float16"),
    ("float16,float32", "'float16,float32' says compute twice .* such as comp"),
    ("rnn.carry=float32,rnn.carry=float16", "says carry twice"),
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


# The flags that processors report. The second one has no instructions for bfloat16.
UNITS, PLAIN = (
    _cpu({"avx2", "avx512_bf16"}, "GenuineIntel"),
    _cpu({"avx2", "fma"}, "GenuineIntel"),
)


@pytest.mark.parametrize(
    "machine, chosen",
    [
        (UNITS, "bfloat16"),
        (_cpu({"amx_bf16"}, "GenuineIntel"), "bfloat16"),
        (PLAIN, "float32"),
        (MACHINES["h100"], "bfloat16"),
        (MACHINES["tpu v5e"], "bfloat16"),
        (MACHINES["unknown"], "float32"),
    ],
    ids=lambda x: getattr(x, "kind", x),
)
def test_precision_auto_is_what_pays_on_a_machine(machine, chosen):
    assert Precision.parse("auto", machine) == Precision(compute=chosen)
    policy = Precision.parse("auto,rnn.compute=auto,rnn.carry=bfloat16", machine)
    assert policy.compute == policy.at("rnn").compute == chosen
    assert settle("carry=bfloat16, compute = auto", chosen == "bfloat16").endswith(
        f"bfloat16, compute = {chosen}"
    )
    assert str(explain("auto", machine)).startswith(f"precision auto: {chosen}, ")
    assert explain("float32", machine) is None


def test_precision_auto_of_a_run_that_goes_on_is_told():
    line = explain("auto", MACHINES["h100"], "float32")
    assert line == "precision auto: float32, with which this run was started"
    for chosen in (None, "bfloat16"):
        line = explain("auto", MACHINES["h100"], chosen)
        assert str(line).startswith("precision auto: bfloat16, whose products")


def test_precision_auto_is_that_of_the_machine_here():
    assert Precision.parse("auto") == Precision.parse("auto", machine_of())


@pytest.mark.parametrize("text", ["bfloat16", "float16", "readout.compute=bfloat16"])
def test_precision_that_does_not_pay_is_told_in_one_line(text):
    line = explain(text, PLAIN)
    assert line is not None and "\n" not in line
    assert "16 products take longer than in float32 on this machine (cpu)" in line
    assert explain(text, MACHINES["h100"]) is None
