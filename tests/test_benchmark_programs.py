"""Benchmarks of other people's programs, and of errors of gradients."""

import importlib
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from benchmarks import contenders, measure, precision, programs
from benchmarks.gate import mean_squared
from benchmarks.programs import measure as entering
from benchmarks.programs import report as listing
from benchmarks.programs._base import Program
from scanrnn.machines import machine_of
from tests.cell_table import CELLS

# Smaller sizes for programs that are large.
SMALL = {
    "selective scan (Mamba)": dict(T=9, B=2, D=8, N=4),
    "RWKV's state": dict(T=9, B=2, H=2, N=4),
    "chunks of a gated delta rule": dict(T=5, S=3, C=4, K=4),
    "recurrent state space with resets (Dreamer)": dict(
        T=7, B=3, H=8, S=2, C=4, E=5, A=2
    ),
    "attention decoder": dict(T=5, B=3, S=4, H=8, V=10),
    "Kalman filter": dict(T=7, B=2, N=4, M=2),
    "hidden Markov model": dict(T=7, B=2, K=4, D=3),
    "advantage estimation": dict(T=19, B=3, D=2, H=4),
    "advantage estimation (Brax)": dict(T=19, B=3, D=2, H=4),
    "lambda-returns": dict(T=19, B=3, D=2, H=4),
    "V-trace": dict(T=19, B=3, D=2, H=4),
    "Kalman filter with a fixed gain": dict(T=19, B=3, N=4, M=2),
    "averages of an optimiser": dict(T=19, D=4),
}


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


def _tiny_program(apply):
    return Program("tiny", {"w": np.full((2, 3), 0.1, np.float32)}, np.ones(2), apply)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_programs_must_give_what_the_original_gives(monkeypatch, factor):
    program = _tiny_program(lambda params, x: jnp.tanh(x @ params["w"]))
    monkeypatch.setattr(entering, "find", lambda name: program)
    monkeypatch.setattr(
        entering.scanrnn, "accelerate", lambda f: lambda *a: factor * f(*a)
    )
    race = entering.enter("tiny")
    race.round()
    record = json.loads(json.dumps(entering.record("tiny", race)))
    ours = record["contenders"][programs.OURS]
    assert ours["gate"]["passed"] is (factor == 1)
    assert ("train" in ours) is (factor == 1)
    assert measure.same_program(record, "train", *record["contenders"]) is (factor == 1)
    text = "\n".join(listing.section([record]))
    assert ("| wrong |" in text) is (factor != 1)
    assert ("tiny (left as it is)" in text) is (factor == 1)


def test_programs_absent_say_so(monkeypatch):
    monkeypatch.setitem(programs.FILES, "GRU of nobody", "missing")
    race = entering.enter("GRU of nobody")
    record = entering.record("GRU of nobody", race)
    (*_, notes) = listing.section([record])
    assert notes.startswith("- GRU of nobody: benchmarks.programs.missing is not")


def test_every_cell_is_a_program():
    found = {name.partition(".")[2] for name in programs.FILES if "cells." in name}
    assert found == {row.factory for row in CELLS.values()}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # peers may warn on import
@pytest.mark.parametrize(
    "name",
    # Other tests compare programs of cells, and a test below has the large programs.
    [name for name in programs.FILES if "cells." not in name and name not in SMALL]
    + ["cells.rhn"],
)
def test_programs_accelerated_pass_the_gate(name):
    race = entering.enter(name)
    if isinstance(race, contenders.Absent):
        pytest.skip(str(race))
    assert all(entry.runs for entry in race.entries), race.entries
    theirs, ours, *_ = (entry.runner.compiled for entry in race.entries)
    # What is computed before the loop, for as many steps as the fast memory holds.
    before = 3 * machine_of().fast_memory
    assert ours["forward"].temp_bytes <= 1.1 * theirs["forward"].temp_bytes + before
    assert ours["train"].temp_bytes <= 1.1 * theirs["train"].temp_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_programs_with_large_states_keep_their_values_and_gradients(name):
    program = _made(name, **SMALL[name])
    wanted = _gradients(program, program.apply)
    got = _gradients(program, scanrnn.accelerate(program.apply))
    chex.assert_trees_all_close(got, wanted, rtol=1e-4, atol=1e-5)


def _made(name, **sizes):
    module = importlib.import_module(f"benchmarks.programs.{programs.FILES[name]}")
    return module.PROGRAMS[name](**sizes)


def _gradients(program, apply):
    """The gradients and the outputs of a program."""

    def loss(params):
        ys = apply(params, program.inputs)
        return mean_squared(ys, 0.5), ys

    return jax.jit(jax.grad(loss, has_aux=True))(program.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.AFFINE)
def test_programs_that_are_affine_in_parallel_keep_their_values_and_gradients(name):
    program = _made(name, **SMALL[name])
    options = scanrnn.Options(implementation="associative")
    fast = scanrnn.accelerate(program.apply, plan=options)
    wanted = _gradients(program, program.apply)
    chex.assert_trees_all_close(_gradients(program, fast), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", programs.AFFINE)
def test_programs_that_are_affine_have_no_loop_on_a_gpu(name):
    """Nobody asks for it: the planner of `accelerate` finds it and chooses it."""
    program = _made(name, **SMALL[name] | {"T": 2048})
    for machine in ("h100", "cpu"):
        options = scanrnn.Options(machine=machine)
        fast = scanrnn.accelerate(program.apply, plan=options)

        def loss(params, fast=fast):
            return mean_squared(fast(params, program.inputs), 0.5)

        text = str(jax.make_jaxpr(jax.grad(loss))(program.params))
        assert (" scan[" in text) == (machine == "cpu")


def test_gradients_in_bfloat16_are_no_worse_than_those_of_lax_scan():
    ours, theirs = (
        precision.gradient_errors(60, scan, (8, 16))
        for scan in (precision.SCANS["scanrnn"], precision.SCANS["lax_scan"])
    )
    for name, error in ours.items():
        assert 0 < error <= 1.05 * theirs[name], (name, error, theirs[name])
