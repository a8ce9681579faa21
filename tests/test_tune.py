"""The optional tuner: its choices, its cache, and what it checks again."""

import contextlib
import dataclasses
import functools
import json
import os
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn import executors
from scanrnn._tune import memory, tuner
from scanrnn._tune.orientations import orientations
from scanrnn.executors import pallas_gpu, planned
from scanrnn.machines import MACHINES, _processor
from scanrnn.planner import costs

U = jnp.eye(4) / 2
W = jnp.ones((3, 4)) / 3
INIT, XS = jnp.zeros((2, 4)), jnp.linspace(-1.0, 1.0, 30).reshape(5, 2, 3)


def step(h, x):
    h = jnp.tanh(x @ W + h @ U)
    return h, h


def plan(xs=XS, tune=True, **options):
    return scanrnn.plan(step, INIT, xs, tune=tune, **options)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Give every test its own cache."""
    monkeypatch.setenv("SCANRNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(memory, "_unwritable", set())
    return tmp_path / "cache"


class FakeTimes(dict):
    """Seconds by candidate, 1 for others. Runs are counted, and nothing runs."""

    def __init__(self):
        self.runs = 0

    def time_of(self, run):
        self.runs += 1
        return self.get(run(), 1.0)


@pytest.fixture
def times(monkeypatch):
    times = FakeTimes()

    def compiled(plans, goal, args):
        return [
            tuner.Timed(name, plan.options, functools.partial(str, name))
            for name, plan in plans.items()
        ]

    monkeypatch.setattr(tuner, "_compiled", compiled)
    monkeypatch.setattr(tuner, "time_of", times.time_of)
    return times


CHOICES = {
    "the fastest": ({"hoist=False": 0.5, "layout=False": 0.4}, {"layout": False}),
    "another policy": ({"residuals='recompute'": 0.5}, {"residuals": "recompute"}),
    "lax.scan": (
        {"implementation='scan'": 0.5, "sink=False": 0.6},
        {"implementation": "scan"},
    ),
    "too little faster": ({"merge=False": 0.98}, {}),
    "all alike": ({}, {}),
}


@pytest.mark.parametrize("seconds, options", CHOICES.values(), ids=CHOICES)
def test_choice_is_the_fastest_if_clearly_so(times, seconds, options):
    times.update(seconds)
    assert plan().options == scanrnn.Options(**options)


def test_every_candidate_is_timed_in_every_round(times):
    seconds = plan().tuning.seconds
    assert list(seconds) == [
        "as asked",
        "hoist=False",
        "layout=False",
        "sink=False",
        "merge=False",
        "residuals='recompute'",
        "features_first=True",
        "implementation='scan'",
        # In reverse the four numbers of the carry are one block.
        "implementation='associative'",
    ]
    # Rounds of one second each until the budget is spent.
    assert times.runs == len(seconds) * tuner.LEAST_ROUNDS


def test_rounds_end_when_there_are_enough(times):
    times.update(dict.fromkeys(plan().tuning.seconds, 1e-6))
    times.runs = 0
    seconds = plan(XS[:4]).tuning.seconds
    assert times.runs == len(seconds) * tuner.MOST_ROUNDS


def test_option_that_was_given_stays(times):
    times.update(
        {"implementation='scan'": 0.1, "residuals='recompute'": 0.1, "sink=False": 0.5}
    )
    tuned = plan(residuals="chunked", hoist=False)
    wanted = scanrnn.Options(residuals="chunked", hoist=False, sink=False)
    assert tuned.options == wanted
    assert set(tuned.tuning.seconds) == {
        "as asked",
        "layout=False",
        "sink=False",
        "merge=False",
        "features_first=True",
    }


def tried(batch=(2,), machine=None, **options):
    """The values of `features_first` that the tuner tries, for a large matrix."""
    matrix = jnp.zeros((1024, 1024), "float32")

    def large(h, x):
        h = jnp.tanh(h @ matrix + x)
        return h, h

    xs = jax.ShapeDtypeStruct((4, *batch, 1024), "float32")
    init = xs.update(shape=xs.shape[1:])
    made = scanrnn.plan(large, init, xs, machine=machine, **options)
    return orientations(made)


AMX = dataclasses.replace(
    MACHINES["cpu"], units=frozenset({"avx2", "avx512f", "amx_bf16"})
)
AVX2 = dataclasses.replace(MACHINES["cpu"], units=frozenset({"avx2"}))


def test_orientations_that_the_plan_does_not_have_are_tried():
    assert tried((2,), AMX) == [True]  # the batch is first
    assert tried((32,), AMX) == [False]  # features are first in the whole loop
    assert tried((32,), AVX2) == [True, False]  # in products alone


def test_orientations_are_tried_only_where_they_may_matter():
    assert tried((), AMX) == []  # no batch
    assert tried((2,), "h100") == []
    assert tried((2,), AMX, features_first=False) == []
    assert tried((2,), AMX, implementation="scan") == []
    xs = jnp.ones((5, 2, 4))
    average = scanrnn.plan(lambda h, x: (h / 2 + x, h), xs[0], xs, machine="cpu")
    assert orientations(average) == []


def test_orientation_is_remembered(times, folder):
    times["features_first=True"] = 0.5
    assert plan().options == scanrnn.Options(features_first=True)
    times.clear()
    assert plan().options == scanrnn.Options(features_first=True)
    assert plan().tuning.remembered


def test_file_from_before_an_option_existed_is_read(times, folder):
    """A field that is missing has its default."""
    times["hoist=False"] = 0.5
    plan()
    (path,) = folder.iterdir()
    content = json.loads(path.read_text())
    del content["options"]["features_first"]
    path.write_text(json.dumps(content))
    runs = times.runs
    assert plan().options == scanrnn.Options(hoist=False)
    assert times.runs == runs


def test_executor_of_a_user_is_tried(times, monkeypatch):
    mine = types.SimpleNamespace(**{**vars(planned), "NAME": "mine"})
    monkeypatch.setitem(executors.EXECUTORS, "mine", mine)
    times["implementation='mine'"] = 0.5
    assert plan().executor.name == "mine"


def test_executors_that_run_over_time_are_tried(times):
    def average(h, x):
        h = 0.9 * h + x
        return h, h

    times["implementation='associative'"] = 0.5
    init, xs = jnp.zeros((8, 64)), jnp.ones((20, 8, 64))
    tuned = scanrnn.plan(average, init, xs, tune=True)
    assert tuned.executor.name == "associative"
    assert "implementation='chunkwise'" not in tuned.tuning.seconds
    again = scanrnn.plan(average, init, xs, tune=True)
    assert again.tuning.remembered and again.executor.name == "associative"


def test_baseline_is_lax_scan_if_the_estimate_prefers_it(times, monkeypatch):
    real = costs.cost

    def cheap(plan, in_loop, loops):
        return real(plan, in_loop, loops)._replace(dispatch=0.0 if in_loop else 1.0)

    monkeypatch.setattr(costs, "cost", cheap)
    times["implementation='planned'"] = 0.98
    tuned = scanrnn.plan(lambda h, x: step(h, x), INIT, XS, tune=True)
    assert tuned.executor.name == "scan"
    assert tuned.reason == "it is the cheapest by estimate"
    tried = list(tuned.tuning.seconds)
    assert tried[:2] == ["as asked", "implementation='planned'"]
    assert "implementation='scan'" not in tried


def test_variation_that_the_executor_refuses_is_left_out(times):
    def retention(S, x):
        q, k, v = x
        S = 0.9 * S + k[:, :, None] * v[:, None, :]
        return S, jnp.einsum("bk,bkv->bv", q, S)

    xs = (jnp.ones((6, 2, 4)),) * 3
    tuned = scanrnn.plan(
        retention, jnp.zeros((2, 4, 4)), xs, implementation="chunkwise", tune=True
    )
    assert tuned.executor.name == "chunkwise"
    assert "hoist=False" in tuned.tuning.seconds
    assert "residuals='recompute'" not in tuned.tuning.seconds


def test_winner_is_read_back_without_a_run(times, folder):
    times["hoist=False"] = 0.5
    first, runs = plan(), times.runs
    (path,) = folder.iterdir()
    assert first.tuning.remembered == str(path)
    times.clear()
    again = plan()
    assert times.runs == runs
    assert again.options == scanrnn.Options(hoist=False)
    assert str(again) == str(first)


OTHERS = {
    "shapes": lambda: plan(XS[:, :1].repeat(2, 1)[:3]),
    "dtype": lambda: scanrnn.plan(
        lambda h, x: (jnp.tanh(x @ W.astype("f") + h), h),
        INIT.astype("f"),
        XS.astype("f"),
        tune=True,
    ),
    "objective": lambda: plan(tune="forward"),
    "options": lambda: plan(defer=False),
    "direction": lambda: plan(reverse=True),
    "unroll": lambda: plan(unroll=2),
    "step": lambda: scanrnn.plan(
        lambda h, x: (jnp.sin(x @ W + h @ U), h), INIT, XS, tune=True
    ),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_question_has_another_file(times, folder, other):
    plan()
    other()
    assert len(list(folder.iterdir())) == 2


VERSIONS = {
    "jax": lambda m: m.setattr(jax, "__version__", "0.0"),
    "scanrnn": lambda m: m.setattr(scanrnn, "__version__", "0.0"),
    "source": lambda m: m.setattr(memory, "_source", lambda: "edited"),
    "machine": lambda m: m.setattr(_processor, "model", lambda: "abacus"),
    "cores": lambda m: m.setattr(_processor, "cores", lambda: 1000),
    "flags": lambda m: m.setenv("XLA_FLAGS", "--xla_other"),
}


@pytest.mark.parametrize("change", VERSIONS.values(), ids=VERSIONS)
def test_another_version_or_machine_has_another_file(
    times, folder, monkeypatch, change
):
    plan()
    change(monkeypatch)
    plan()
    assert len(list(folder.iterdir())) == 2


def test_digest_of_the_source_changes_with_each_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "__file__", str(tmp_path / "_tune" / "memory.py"))
    found = set()
    for part in memory._PARTS:
        (tmp_path / part).mkdir()
        for text in ("1", "2"):
            (tmp_path / part / "a.py").write_text(text)
            found.add(memory._source.__wrapped__())
    assert len(found) == 2 * len(memory._PARTS)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("processor: 0\nmodel name\t: Fast 9\nprocessor: 1\nmodel name\t: F", "Fast 9"),
        (
            "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Fast 9\n",
            "Fast 9, family 25, model 17",
        ),
        (
            "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU part\t: 0xd03\n"
            "CPU part\t: 0xd0c\n",
            "aarch64, implementer 0x41, part 0xd03, part 0xd0c",
        ),
        ("", "aarch64"),
    ],
    ids=["a name", "a name and numbers", "Arm", "nothing"],
)
def test_processor_has_a_name_or_the_numbers_of_its_cores(
    tmp_path, monkeypatch, text, wanted
):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(_processor, "_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(_processor.platform, "machine", lambda: "aarch64")
    assert _processor.model() == wanted


def test_processor_says_its_vendor_and_its_instructions(tmp_path, monkeypatch):
    monkeypatch.setattr(_processor, "_INFO", tmp_path / "cpuinfo")
    assert (_processor.vendor(), _processor.flags()) == ("", frozenset())
    text = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: avx2 avx512f\n"
    (tmp_path / "cpuinfo").write_text(text)
    assert _processor.vendor() == "GenuineIntel"
    assert _processor.flags() == {"avx2", "avx512f"}


@pytest.mark.parametrize("answers", [True, False])
def test_processor_has_its_name_on_macos(tmp_path, monkeypatch, answers):
    def run(words, **options):
        assert words[0] == "sysctl"
        if not answers:
            raise FileNotFoundError(words[0])
        return types.SimpleNamespace(stdout="Apple M9\n")

    monkeypatch.setattr(_processor, "_INFO", tmp_path / "nowhere")
    monkeypatch.setattr(_processor, "sys", types.SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(_processor.subprocess, "run", run)
    monkeypatch.setattr(_processor.platform, "processor", lambda: "arm")
    assert _processor.model() == ("Apple M9" if answers else "arm")


def test_machines_of_one_name_have_files_of_their_own(times, folder):
    for memory_of_a_core in (2**20, 2**21):
        here = scanrnn.plan(step, INIT, XS).machine
        plan(machine=dataclasses.replace(here, fast_memory=memory_of_a_core))
    assert len(list(folder.iterdir())) == 2


def altered(**changes):
    return lambda text: json.dumps(json.loads(text) | changes)


def key_altered(text):
    content = json.loads(text)
    content["key"]["length"] = 6
    return json.dumps(content)


UNTRUSTED = {
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "not text": lambda text: b"\xff\xfe\x00",
    "too deep": lambda text: "[" * 200_000,
    "a list": lambda text: "[1]",
    "null": lambda text: "null",
    "another format": altered(format=2),
    "a foreign key": key_altered,
    "no key": altered(key=None),
    "an unknown option": altered(options={"hoist": False, "speed": 11}),
    "an option of another type": altered(options={"hoist": "no"}),
    "an unhashable option": altered(options={"residuals": {}}),
    "options of no candidate": altered(options={"hoist": False, "sink": False}),
    "options as a list": altered(options=[1]),
    "seconds missing": altered(seconds={}),
    "seconds as text": altered(seconds={"as asked": "1", "hoist=False": 0.5}),
    "seconds not finite": altered(seconds={"as asked": float("nan")}),
    "seconds of no candidate": altered(seconds={"rm -rf": 1.0, "hoist=False": 0.5}),
}


@pytest.mark.parametrize("spoil", UNTRUSTED.values(), ids=UNTRUSTED)
def test_file_that_cannot_be_trusted_is_replaced_with_a_warning(times, folder, spoil):
    times["hoist=False"] = 0.5
    plan()
    (path,) = folder.iterdir()
    good = path.read_text()
    bad = spoil(good)
    path.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    runs = times.runs
    with pytest.warns(UserWarning, match=f"tuning again, since {path} cannot be used"):
        assert plan().options == scanrnn.Options(hoist=False)
    assert times.runs == 2 * runs
    assert path.read_text() == good


def test_crash_while_writing_leaves_the_old_file_and_no_other(
    times, folder, monkeypatch
):
    plan()
    (path,) = folder.iterdir()
    path.write_text("old")

    def crash(source, target):
        assert json.loads(Path(source).read_text())["format"] == memory.FORMAT
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with (
        pytest.warns(UserWarning, match="cannot be used"),
        pytest.raises(KeyboardInterrupt),
    ):
        plan()
    assert path.read_text() == "old"
    assert list(folder.iterdir()) == [path]


def test_folder_that_cannot_be_written_is_said_once(times, folder, recwarn):
    folder.write_text("a file where the folder should be")
    times["hoist=False"] = 0.5
    for _ in range(2):
        tuned = plan()
        assert tuned.options == scanrnn.Options(hoist=False)
        assert tuned.tuning.remembered is None
        assert "not remembered" in str(tuned)
    (warning,) = recwarn.list
    assert f"cannot be remembered in {folder}" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "variables, wanted",
    [
        ({"SCANRNN_CACHE": "/a"}, "/a"),
        ({"SCANRNN_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/scanrnn"),
        (
            {"SCANRNN_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"},
            "/h/.cache/scanrnn",
        ),
    ],
)
def test_folder_is_the_users_own(monkeypatch, variables, wanted):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(memory.path_of({}).parent) == wanted


def test_step_whose_text_holds_an_address_is_not_remembered(times, folder, monkeypatch):
    text = type("Text", (), {"__str__": lambda self: "f at 0x7f"})
    monkeypatch.setattr(tuner.memory, "str", lambda x: str(text()), raising=False)
    assert plan().tuning.remembered is None
    assert not folder.exists()


def test_report_says_that_the_plan_was_tuned(times, folder):
    times["hoist=False"] = 0.5
    line = str(plan()).splitlines()[2]
    (path,) = folder.iterdir()
    assert line.startswith("Tuned (train): hoist=False is used; medians: as asked 1000")
    assert ", hoist=False 500 ms, " in line
    assert line.endswith(f"remembered in {path}.")
    assert "Tuned" not in str(plan(tune=False))


def gradients(scan):
    def loss(init, xs):
        h, ys = scan(init, xs)
        return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))

    return jax.value_and_grad(loss, (0, 1))(INIT, XS)


@pytest.mark.parametrize("choice", ["hoist=False", "implementation='scan'"])
def test_scan_with_a_tuned_plan_equals_lax_scan(times, choice):
    times[choice] = 0.5
    tuned = plan()
    assert tuned.tuning.chosen == choice
    got = gradients(lambda i, x: scanrnn.scan(step, i, x, plan=tuned))
    wanted = gradients(lambda i, x: lax.scan(step, i, x))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_implementation_scan_is_lax_scan_as_it_stands():
    plan = scanrnn.plan(step, INIT, XS, implementation="scan")
    assert "by lax.scan unchanged: implementation='scan'." in str(plan)
    with pytest.raises(ValueError, match="'cudnn'"):
        scanrnn.plan(step, INIT, XS, implementation="cudnn")


@pytest.fixture
def quick(monkeypatch):
    """Compile and run real programs, in one round."""
    monkeypatch.setattr(tuner, "BUDGET", 0.0)
    monkeypatch.setattr(tuner, "LEAST_ROUNDS", 1)


def test_candidates_run_and_those_with_the_same_program_are_left_out(quick):
    seconds = plan().tuning.seconds
    # This step has no readout and one recurrent contraction.
    assert {"as asked", "hoist=False", "implementation='scan'"} <= set(seconds)
    assert not {"sink=False", "merge=False"} & set(seconds)


def test_tuning_under_jit_leaves_the_program_as_it_is(quick, folder):
    plans = []

    @jax.jit
    def run(u, init, xs):
        def step(h, x):
            h = jnp.tanh(x @ W + h @ u)
            return h, h

        plans.append(scanrnn.plan(step, init, xs, tune=True))
        return scanrnn.scan(step, init, xs, plan=plans[-1])

    got = run(U, INIT, XS)
    wanted = lax.scan(step, INIT, XS)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert set(plans[0].tuning.seconds) > {"as asked"}
    # Results from inside of `jit` are used outside too.
    assert plan().tuning == plans[0].tuning
    assert len(list(folder.iterdir())) == 1


@pytest.mark.slow
def test_structs_and_keys_are_given_numbers(quick):
    def noisy(carry, x):
        h, key, n = carry
        key, sub = jax.random.split(key)
        h = jnp.tanh(x @ W + h @ U + jax.random.normal(sub, h.shape, h.dtype))
        return (h, key, n + 1), h

    init = jax.eval_shape(lambda: (INIT, jax.random.key(0), jnp.int32(0)))
    xs = jax.ShapeDtypeStruct(XS.shape, XS.dtype)
    tuned = scanrnn.plan(noisy, init, xs, tune=True)
    assert tuned.tuning.objective == "train"
    assert set(tuned.tuning.seconds) > {"as asked"}


def without_gradient(h, x):
    h = x @ W + h @ U
    h = lax.while_loop(lambda h: jnp.sum(h) < 1.0, lambda h: h + 1.0, h)
    return h, h


def test_step_without_gradient_is_tuned_forward(quick):
    tuned = scanrnn.plan(without_gradient, INIT, XS, tune=True)
    assert tuned.tuning.objective == "forward"


def test_plan_with_nothing_to_choose_is_returned_as_it_is(times):
    ones = jnp.ones((2, 4), int)
    tuned = scanrnn.plan(lambda h, x: (h * h + x, h), ones, ones[None], tune=True)
    assert tuned.tuning is None
    assert times.runs == 0


def symbolic():
    (b,) = jax.export.symbolic_shape("b")
    init, xs = jax.ShapeDtypeStruct((b, 4), "f8"), jax.ShapeDtypeStruct((5, b, 3), "f8")
    return scanrnn.plan(step, init, xs, tune=True)


def inside_shard_map():
    """The traced step contains the mesh under which it was traced."""

    def run(init, xs):
        tuned = scanrnn.plan(step, init, xs, tune=True)
        return scanrnn.scan(step, init, xs, plan=tuned)[1]

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    batch, steps = (jax.sharding.PartitionSpec(*names) for names in ("i", (None, "i")))
    return jax.shard_map(run, mesh=mesh, in_specs=(batch, steps), out_specs=steps)(
        INIT, XS
    )


ERRORS = {
    "symbolic": (symbolic, "tune needs sizes that are numbers .* b is symbolic"),
    "unknown": (lambda: plan(tune="fast"), 'True, "train" or "forward"; got .fast.'),
    "number": (lambda: plan(tune=1), "got 1"),
    "no gradient": (
        lambda: scanrnn.plan(without_gradient, INIT, XS, tune="train"),
        'tune="train" needs a step with a gradient',
    ),
    "shard_map": (inside_shard_map, "could not run the step on its own"),
}


@pytest.mark.parametrize("call, message", ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_tuned_is_an_error(quick, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_several_processes_are_not_tuned(times, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="tune is for one process, and here are 2: .*"):
        plan()
    assert times.runs == 0
    assert plan(tune=False).tuning is None


@pytest.mark.parametrize("is_right", [True, False])
def test_tuner_checks_a_kernel_that_the_estimate_chose(is_right, monkeypatch):
    """The interpreter takes the place of the device."""
    monkeypatch.setattr(tuner, "BUDGET", 0.0)
    monkeypatch.setattr(pallas_gpu, "PLATFORM", "cpu")
    monkeypatch.setattr(pallas_gpu, "PROVEN", frozenset({"cpu"}))
    monkeypatch.setattr(pallas_gpu, "work", lambda _: costs.Work(0.0, 0.0, inside=1e-9))
    right = pallas_gpu.lower

    def wrong(*args):
        final, ys = right(*args)
        return final, [1.5 * y for y in ys]

    if not is_right:
        monkeypatch.setattr(pallas_gpu, "lower", wrong)

    matrix, xs = 0.1 * jnp.ones((16, 16)), jnp.ones((5, 2, 16))

    def step(h, x):
        h = jnp.tanh(h @ matrix + x)
        return h, h

    said = contextlib.nullcontext()
    assert scanrnn.plan(step, xs[0], xs).executor.name == "pallas_gpu"
    if not is_right:
        said = pytest.warns(UserWarning, match="times as far from XLA's loops")
    with said:
        plan = scanrnn.plan(step, xs[0], xs, tune=True)
    assert (tuner.DEFAULT in plan.tuning.seconds) == is_right
    assert "implementation='planned'" in plan.tuning.seconds
    assert is_right or plan.executor.name != "pallas_gpu"
