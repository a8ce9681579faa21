"""Plans for other machines: found by name, with correct results on any machine."""

import collections
import copy
import dataclasses
import functools
import pickle
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import by_name, pallas_gpu, planned
from scanrnn.executors.run import ruled
from scanrnn.machines import (
    MACHINES,
    cores_here,
    machine_for,
    machine_named,
    machine_of,
)
from tests.compare import assert_same, training_jaxpr, value_and_gradients
from tests.jaxprs import equations, loops
from tests.step_table import build


@pytest.mark.parametrize("name", MACHINES)
def test_machine_is_found_by_its_name(name):
    assert machine_named(name).kind == machine_named(name.upper()).kind == name
    assert machine_named(MACHINES[name]) is MACHINES[name]


def test_machine_that_is_unknown_is_named_with_the_way_out():
    with pytest.raises(ValueError, match="h200.*h100"):
        scanrnn.Options(machine="h200")
    with pytest.raises(TypeError, match="got int"):
        scanrnn.Options(machine=3)


def test_machine_is_that_of_the_arrays():
    assert machine_of([jnp.ones(3)]).platform == jax.devices()[0].platform
    assert machine_for("tpu", "TPU v5 lite") is MACHINES["tpu v5e"]
    assert machine_for("elsewhere") is MACHINES["unknown"]


def test_machine_is_the_device_of_the_default_platform(monkeypatch):
    device = types.SimpleNamespace(platform="tpu", device_kind="TPU v5p")
    monkeypatch.setattr(jax, "devices", {"tpu": [device]}.__getitem__)
    with jax.default_device("tpu"):
        assert machine_of().kind == "tpu v5p"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"platform": "gpu"}, "platform='gpu', want one of cpu, cuda, .*for a GPU"),
        ({"peaks": {"bfloat16": 1e14}}, "peaks has bfloat16, want .* 'float32' too"),
        ({"peaks": {"float32": 0.0}}, r"peaks\['float32'\]=0.0, want a positive"),
        ({"cores": 0}, "cores=0, want a positive number"),
        ({"launch": -1e-6}, "launch=-1e-06, want a positive number"),
    ],
)
def test_machine_with_a_wrong_data_sheet_is_refused(wrong, message):
    with pytest.raises(ValueError, match=f"Machine: {message}"):
        dataclasses.replace(MACHINES["h100"], **wrong)


@pytest.mark.parametrize(
    ("kind", "capability", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", "h100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", "a100"),
        ("NVIDIA GeForce RTX 4090", "8.9", "a100"),
        ("Tesla V100-SXM2-16GB", "7.0", "v100"),
        ("Tesla T4", "7.5", "v100"),
    ],
)
def test_gpu_is_planned_for_by_its_compute_capability(kind, capability, name):
    assert machine_of([array_on_a_gpu(kind, capability)]) is MACHINES[name]
    assert MACHINES[name].pays("bfloat16") == (name != "v100")


@pytest.mark.parametrize("cores", [114, 132])
def test_gpu_has_the_multiprocessors_that_it_says(cores):
    """An H100 for PCIe has fewer than one for SXM."""
    machine = machine_of([array_on_a_gpu("NVIDIA H100", "9.0", core_count=cores)])
    assert (machine.kind, machine.cores) == ("h100", cores)
    assert (machine is MACHINES["h100"]) == (cores == 132)


@pytest.mark.parametrize(
    ("counts", "cores"), [([], 132), ([144], 132), ([132, 20], 20)]
)
def test_machine_by_name_has_no_more_cores_than_the_gpus_here(
    counts, cores, monkeypatch
):
    def local_devices(backend):
        assert backend == "cuda"
        return [types.SimpleNamespace(core_count=count) for count in counts]

    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert cores_here(MACHINES["h100"]) == cores


def test_machine_that_is_not_here_has_all_its_cores():
    for name in ("cpu", "unknown"):
        assert cores_here(MACHINES[name]) == MACHINES[name].cores


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("capability", ["10.0", "12.0", None])
def test_gpu_that_is_no_h100_runs_no_kernel_by_default(platform, capability):
    """It is planned for as one, but nothing was proven there."""
    machine = machine_of([array_on_a_gpu("a GPU", capability, platform)])
    assert machine == dataclasses.replace(MACHINES["h100"], kind=machine.kind)
    assert machine is machine_of([array_on_a_gpu("a GPU", capability, platform)])
    assert by_name(pallas_gpu, machine)
    assert not by_name(pallas_gpu, MACHINES["h100"])


def array_on_a_gpu(kind, capability, platform="cuda", **more):
    client = types.SimpleNamespace(platform_version=f"{platform} 12090")
    device = types.SimpleNamespace(
        platform="gpu",
        client=client,
        device_kind=kind,
        compute_capability=capability,
        **more,
    )
    sharding = types.SimpleNamespace(device_set=[device])
    return types.SimpleNamespace(sharding=sharding)


# But for the LSTM, each step runs forward for one machine and in reverse for the other.
OF_MACHINES = [
    (machine, name, name != "lstm" and bool((i + k) % 2))
    for k, machine in enumerate(["h100", "tpu v5e"])
    for i, name in enumerate(["lstm", "ln_lstm", "gru", "output_head"])
]


@pytest.mark.parametrize(("machine", "name", "reverse"), OF_MACHINES)
def test_program_of_a_machine_equals_lax_scan(monkeypatch, machine, name, reverse):
    """The program of the other machine is compiled for the machine of the tests."""
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES[machine])
    step, params, init, xs = build(name)
    xs = jnp.concatenate([xs, 2 * xs[:1]])  # six steps: five cannot be divided
    plan = scanrnn.Options(machine=machine)
    make = step, params, init, xs
    assert_same(make, value_and_gradients, plan=plan, reverse=reverse)


@pytest.mark.parametrize(
    ("name", "T", "reverse"),
    [
        *(("lstm", 11, reverse) for reverse in (False, True)),
        pytest.param("lstm", 39, True, marks=pytest.mark.slow),
        *(
            pytest.param(name, *steps, marks=pytest.mark.slow)
            for name, flip in (("ln_lstm", False), ("gru", True))
            for steps in ((11, flip), (39, not flip))
        ),
    ],
)
def test_steps_beside_the_trips_of_a_gpu_equal_lax_scan(monkeypatch, name, T, reverse):
    """A trip has ten steps, which do not divide the sequence."""
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES["h100"])
    step, params, init, xs = build(name)
    xs = jnp.tile(xs, (-(-T // len(xs)), *[1] * (xs.ndim - 1)))[:T]
    options = {"machine": "h100", "implementation": "planned"}
    args = functools.partial(step, params), init, xs
    bodies = scanrnn.plan(*args, reverse=reverse, **options).bodies.values()
    assert {(body.rows.trip_steps, body.rows.rest) for body in bodies} == {(10, T % 10)}
    make, plan = (step, params, init, xs), scanrnn.Options(**options)
    assert_same(make, value_and_gradients, plan=plan, reverse=reverse)


@pytest.mark.parametrize(
    ("machine", "same"),
    [
        ("unknown", "h100"),
        ("a100", "h100"),
        ("v100", "h100"),
        ("tpu v5p", "tpu v5e"),
        ("tpu v6e", "tpu v5e"),
    ],
)
def test_machine_has_the_rules_of_the_one_that_is_tested(machine, same):
    assert planned.rules(MACHINES[machine]) == planned.rules(MACHINES[same])


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
def test_program_of_several_devices_equals_lax_scan(monkeypatch, machine):
    """Several devices may not reuse buffers, or assume layouts, as one device may."""
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES[machine])
    monkeypatch.setattr(ruled.compat, "on_one_device", lambda ctx: False)
    plan = scanrnn.Options(machine=machine)
    assert_same(build("lstm"), value_and_gradients, plan=plan)


@pytest.mark.parametrize(
    ("machine", "steps"),
    [("cpu", (1, 1, 1)), ("h100", (10, 8, 1)), ("tpu v5e", (1, 1, 1))],
)
def test_gpu_shares_kernels_between_steps_that_divide_the_sequence(machine, steps):
    rules = planned.rules(MACHINES[machine])
    found = [rules.trips.block(length) for length in (30, 256, 13)]
    assert tuple(found) == steps


def test_trip_that_is_short_leaves_a_rest_where_it_may():
    trips = planned.rules(MACHINES["h100"]).trips
    found = [trips.block(length, rest=True) for length in (7, 13, 22, 35, 127, 256)]
    assert found == [7, 10, 10, 7, 10, 8]
    assert trips.block(127) == 1


@pytest.mark.parametrize(
    ("machine", "name", "count"),
    [("h100", "lstm", 3 * 6), ("h100", "ln_lstm", 6), ("cpu", "lstm", 0)],
)
def test_rows_that_a_trip_stacks_are_made_once(machine, name, count):
    """A barrier for each of six steps stops a GPU from computing its rows twice.

    The forward loop counts twice, because it is also compiled by itself.
    """
    step, params, init, xs = build(name)
    xs = jnp.concatenate([xs, xs[:1]])
    scan = functools.partial(scanrnn.scan, plan=scanrnn.Options(machine=machine))
    jaxpr = training_jaxpr(scan, (step, params, init, xs))
    bodies = (scan.params["jaxpr"].jaxpr for scan in loops(jaxpr))
    names = [e.primitive.name for body in bodies for e in equations(body)]
    assert names.count("optimization_barrier") == count


@pytest.mark.parametrize(
    ("machine", "dtype", "batch", "forward", "reverse"),
    [
        ("h100", "bfloat16", 2, True, True),
        ("h100", "bfloat16", 128, False, False),
        ("h100", "float32", 2, True, False),
        ("cpu", "bfloat16", 2, False, False),
    ],
)
def test_gpu_separates_steps(machine, dtype, batch, forward, reverse):
    """Tiny half-precision steps, and steps that XLA would compute from earlier ones."""
    matrix = jnp.ones((128, 128), dtype)

    def step(h, x):
        z = h @ matrix + x
        h = jnp.tanh(z - z.mean(-1, keepdims=True))
        return h, h

    xs = jax.ShapeDtypeStruct((16, batch, 128), dtype)
    h, loops = xs.update(shape=xs.shape[1:]), {"implementation": "planned"}
    plan = scanrnn.plan(step, h, xs, machine=machine, **loops)
    separate = {name: body.separate for name, body in plan.bodies.items()}
    assert separate.pop("in reverse") == reverse
    assert {*separate.values()} == {forward}


def test_tpu_makes_small_steps_and_reverse_steps_several_at_a_time():
    tpu, small, large = planned.rules(MACHINES["tpu v5e"]), 2**14, 2**14 + 1
    assert tpu.unroll.factor(small, made=6, reverse=False) == 4
    assert tpu.unroll.factor(large, made=4, reverse=False) == 1
    assert tpu.unroll.factor(large, made=3, reverse=False) == 2
    assert tpu.unroll.factor(large, made=6, reverse=True) == 2
    for name in ("cpu", "h100"):
        rules = planned.rules(MACHINES[name])
        assert rules.unroll.factor(small, made=1, reverse=True) == 1


def test_means_of_rows_are_kept_as_a_machine_likes_them():
    """A CPU keeps each mean alone, a TPU all in one array, and a GPU keeps none."""
    step, params, init, xs = build("ln_lstm")
    f, widths = functools.partial(step, params), {}
    for name in ("cpu", "h100", "tpu v5e"):
        plan = scanrnn.plan(f, init, xs, machine=name, residuals="minimal")
        widths[name] = [v.aval.shape[-1] for v in plan.loop.recording.arrays]
    alone = widths["cpu"].count(1)
    assert alone > 1
    assert 1 not in widths["h100"] + widths["tpu v5e"]
    assert sum(widths["h100"]) == sum(widths["cpu"]) - alone
    assert sum(widths["tpu v5e"]) == sum(widths["cpu"])


@pytest.mark.parametrize(("machine", "given"), [("cpu", False), ("tpu v5e", True)])
def test_tpu_is_not_asked_to_fill_what_a_loop_will_write(machine, given):
    scan = functools.partial(scanrnn.scan, plan=scanrnn.Options(machine=machine))
    jaxpr = training_jaxpr(scan, build("lstm"))
    names = [eqn.primitive.name for eqn in equations(jaxpr)]
    assert ("empty" in names) is given


@pytest.mark.parametrize(("machine", "given"), [("cpu", 0), ("tpu v5e", 1)])
def test_tpu_gives_cotangents_the_memory_of_what_was_hoisted(machine, given):
    step, params, init, xs = build("lstm")
    f = functools.partial(step, params)
    plan = scanrnn.plan(f, init, xs, machine=machine)
    assert len(plan.loop.dead) == given


def test_plan_says_for_which_machine_it_is():
    step, params, init, xs = build("lstm")
    f = functools.partial(step, params)
    told = {
        name: scanrnn.plan(f, init, xs, machine=name).describe(long=True)
        for name in MACHINES
    }
    for name, text in told.items():
        assert f"On {name}, estimates of a training step: planned" in text
    assert "arrays reuse memory" in told["cpu"]
    assert "arrays reuse memory" not in told["tpu v5e"]
    assert "unrolled by 4, rows written step by step" in told["tpu v5e"]
    assert "rows written step by step" not in told["cpu"] + told["h100"]


def test_plan_says_how_many_steps_a_trip_has():
    """With a gradient, trips are shorter, because residuals are stacked."""
    trips = 4, 1, 4
    cell = scanrnn.cells.lstm(norm="ba2016")
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 128, 128))
    xs = jax.ShapeDtypeStruct((30, 16, 128), "float32")
    options = {"machine": "tpu v5e", "residuals": "minimal"}

    def loss(params, xs, scan=scanrnn.scan, **options):
        step = functools.partial(cell.step, params)
        made = scan(step, cell.initial_carry(params, xs[0]), xs, **options)
        return made if scan is scanrnn.plan else jnp.sum(made[1])

    found, given = [], scanrnn.Options(**options)
    for f in (loss, jax.grad(loss)):
        jaxpr = jax.make_jaxpr(functools.partial(f, plan=given))(params, xs)
        found += [loop.params["unroll"] for loop in loops(jaxpr.jaxpr)]
    assert tuple(found) == trips
    plans = []
    show = functools.partial(loss, scan=scanrnn.plan, **options)
    jax.eval_shape(lambda *args: plans.append(show(*args)), params, xs)
    assert tuple(body.unroll for body in plans[0].bodies.values()) == trips
    text = plans[0].describe(long=True)
    assert text.count("unrolled by 4, rows written step by step") == 2


def test_export_for_several_platforms_holds_a_loop_of_each():
    step, params, init, xs = build("lstm")

    def run(init, xs):
        return scanrnn.scan(functools.partial(step, params), init, xs)

    export = functools.partial(jax.export.export, jax.jit(run))
    loops = {}
    for platforms in (["cpu"], ["cpu", "cuda", "tpu"]):
        exported = export(platforms=platforms)(init, xs)
        text = exported.mlir_module()
        loops[len(platforms)] = text.count("stablehlo.while")
        got = jax.tree.leaves(exported.call(init, xs))
        for a, b in zip(got, jax.tree.leaves(run(init, xs)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    # The program for a CPU writes its last row in another loop.
    assert loops[3] > loops[1]


def test_program_for_export_is_the_plan_s_but_for_its_layouts():
    """An exported program has no layouts. All else is the same."""
    step, params, init, xs = build("gru")

    def loss(params):
        run = functools.partial(step, params)
        carry, ys = scanrnn.scan(run, init, xs, plan=scanrnn.Options(machine="tpu v5e"))
        return jnp.sum(ys) + jnp.sum(carry)

    f = jax.jit(jax.grad(loss))
    plain = f.trace(params).lower(lowering_platforms=("tpu",)).as_text()
    stored = jax.export.export(f, platforms=["tpu"])(params).mlir_module()
    # Export removes repeated arithmetic, so compare only loops and custom calls.
    word = re.compile(r"= stablehlo\.(while|custom_call @\w+)")
    plain, stored = (collections.Counter(word.findall(t)) for t in (plain, stored))
    assert plain.pop("custom_call @LayoutConstraint") > 0
    assert plain == stored


@pytest.mark.slow
@pytest.mark.parametrize("length", [50, 400])
def test_sums_of_halves_keep_their_digits(length):
    """In an LSTM fully in bfloat16, the bias is summed over 32 rows and all steps."""
    H, key = 16, jax.random.key(0)
    shapes = {"W": (H, 4 * H), "U": (H, 4 * H), "b": (4 * H,), "g": (H,)}
    keys = jax.random.split(key, len(shapes))
    params = {
        name: jax.random.uniform(k, shape, "float32", -0.25, 0.25)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    xs = jax.random.normal(key, (length, 32, H), "float32")

    def gradients(scan, dtype):
        def loss(p):
            def step(carry, x):
                h, c = carry
                z = x @ p["W"] + h @ p["U"] + p["b"]
                i, f, g, o = jnp.split(z, 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g) * p["g"]
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zeros = jnp.zeros((32, H), dtype)
            ys = scan(step, (zeros, zeros), xs.astype(dtype))[1]
            return jnp.sum(ys.astype("float32")) / length

        cast = jax.tree.map(lambda a: a.astype(dtype), params)
        return jax.jit(jax.grad(loss))(cast)

    wanted = gradients(lax.scan, "float32")
    got = gradients(scanrnn.scan, "bfloat16")
    for name in ("b", "g"):
        error = jnp.linalg.norm(got[name].astype("float32") - wanted[name])
        assert error < 0.05 * jnp.linalg.norm(wanted[name]), name


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
def test_what_is_stacked_is_as_weak_as_by_lax_scan(monkeypatch, machine):
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES[machine])
    W, xs = jnp.ones((4, 4)), jnp.ones((6, 3, 4))

    def step(carry, x):
        h, steps = carry
        h = jnp.tanh(x @ W + h @ W)
        return (h, steps + 1), (h, steps, 2.0 * jnp.sign(steps))

    init = jnp.ones((3, 4)), 0
    ours = scanrnn.scan(step, init, xs, plan=scanrnn.Options(machine=machine))
    wanted = lax.scan(step, init, xs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(a) == jax.typeof(b)


def test_a_row_whose_axes_are_joined_gives_its_memory_to_no_other(monkeypatch):
    """Rows of 16 by 64 numbers do not fill a TPU's tiles: their axes are joined."""
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES["tpu v5e"])
    steps, batch, features = 32, 16, 64
    keys = jax.random.split(jax.random.key(0), steps)
    W, U = 0.1 * jax.random.normal(keys[0], (2, features, features))
    xs = jax.random.normal(keys[1], (steps, batch, features))

    def loss(W, U, scan):
        def step(h, at):
            key, x = at
            kept = jax.random.bernoulli(key, 0.9, h.shape)
            h = jnp.tanh(x @ W + h @ U) * kept
            return h, h

        return (scan(step, jnp.zeros((batch, features)), (keys, xs))[1] ** 2).sum()

    plan = scanrnn.Options(machine="tpu v5e", implementation="planned")
    run = functools.partial(scanrnn.scan, plan=plan)
    found = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(W, U, run)
    wanted = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(W, U, lax.scan)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_machine_is_copied_and_pickled_with_its_peaks():
    for machine in MACHINES.values():
        for again in (pickle.loads(pickle.dumps(machine)), copy.deepcopy(machine)):
            assert again == machine and hash(again) == hash(machine)
            with pytest.raises(TypeError):
                again.peaks["float32"] = 0.0
        assert scanrnn.Machine(**dataclasses.asdict(machine)) == machine
        peaks = dict(machine.peaks)
        other = dataclasses.replace(machine, peaks=peaks)
        assert other == machine and hash(other) == hash(machine)
        peaks["float32"] = 0.0  # the machine has its own
        assert other == machine


def test_plan_is_its_own_copy_and_refuses_to_be_pickled():
    plan = scanrnn.plan(lambda h, x: (h + x, h), jnp.ones(2), jnp.ones((5, 2)))
    assert copy.copy(plan) is plan and copy.deepcopy(plan) is plan
    with pytest.raises(TypeError, match=r"keep plan\.options"):
        pickle.dumps(plan)
    options = scanrnn.Options(machine=MACHINES["h100"])
    assert pickle.loads(pickle.dumps(options)) == options
