"""Pages of kernels: schedules, registers, and rows that are compiled apart."""

import json
import re

import jax
import pytest

import scanrnn
from benchmarks.compiled import apart, gpu_kernels, kernels_page, schedules, workers
from benchmarks.programs import linear_attention

SCHEDULE = """
     0   :  { %s0 = in [kind: input, shape index: {}] /* The window shape is @ */ }
   0x1 LB: > { %a = vld }
iteration_bounds: (2, 3)
   0x2   : > { %b = vld }
   0x3 LB: >> { %c = vadd }
   0x4   : >> { %d = vst }
   0x5   : >> { %d = vst }
   0x6   :  { %e = vsync }
"""


def test_schedule_of_a_kernel_is_read_by_step(tmp_path):
    path = tmp_path / "1-last_to_first.3-72-final_bundles.txt"
    shapes = "bf16[4,8,128], while the full shape is bf16[12,8,128]"
    path.write_text(SCHEDULE.replace("@", shapes))
    kernel = schedules.schedule(path)
    assert (kernel["name"], kernel["point"], kernel["step"]) == ("reverse", 2, 3)
    assert kernel["rows"] == [("in", "bf16", "4,8,128", "12,8,128")]
    # Two parts of the batch, each with four steps at a point.
    assert schedules.per_step(kernel) == 2 * (3 + 2 / 4)


ASSEMBLED = """\
ptxas info    : Compiling entry function 'loop_add_fusion' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compiling entry function 'last_to_first_1' for 'sm_90a'
ptxas info    : Function properties for last_to_first_1
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 38 registers, used 1 barriers, 8320 bytes smem
"""


def test_registers_are_those_of_our_kernels():
    (kernel,) = gpu_kernels.kernels_of(ASSEMBLED)
    assert kernel == {"name": "reverse", "registers": 38, "spilled": 20}


SEQUENCE = """\
    001: kCustomKernel [source] loop_add_fusion grid: [2, 1, 1] threads: [128, 1, 1]  \
shared_memory: 0 bytes
    002: kCustomKernel [prev=001 (1) | next=003 (1)] first_to_last_1 grid: [2, 1, 1] \
threads: [256, 1, 1]  shared_memory: 65536 bytes
"""


def test_shared_memory_is_that_of_our_kernels():
    found = gpu_kernels.launches_of(SEQUENCE)
    assert found == {"forward": {"threads": 256, "shared_bytes": 65536}}


@pytest.mark.parametrize(
    ("name", "markdown"),
    [("kernels", kernels_page.markdown), ("gpu_kernels", gpu_kernels.markdown)],
)
def test_committed_page_of_kernels_is_that_of_numbers_of_one_commit(name, markdown):
    path = workers.ROOT / "benchmarks" / "results" / f"{name}.json"
    results = json.loads(path.read_text())
    assert results["commit"] and not results["dirty"]
    assert markdown(results) == path.with_suffix(".md").read_text()


def test_run_of_kernels_drops_rows_of_another_commit(tmp_path, monkeypatch):
    now = {"commit": "b", "dirty": False, "date": "2026-11-25"}
    monkeypatch.setattr(apart.origin, "commit", lambda: now)
    monkeypatch.setattr(apart, "versions", dict)
    monkeypatch.setattr(apart, "record", lambda _, name, *rest: {"made": name})
    path, was = tmp_path / "kernels.json", now | {"versions": {}}
    rows = {"one": {"made": "before"}, "two": {"error": "before"}}
    page = apart.Page("m", {n: {} for n in rows}, dict, dict, 1.0, path, str)
    for commit, first in (("a", "one"), ("b", "before")):
        path.write_text(json.dumps(was | {"commit": commit, "rows": rows}))
        apart.run(page)
        found = json.loads(path.read_text())
        assert found["rows"] == {"one": {"made": first}, "two": {"made": "two"}}
        assert found["commit"] == "b"


def test_gpu_kernel_that_is_refused_has_a_row_that_says_why():
    starts = {"lax_scan": 2058.0, "scanrnn": 974.0}
    record = {"refused": "no room", "starts": starts, "temp_bytes_of_loops": 19e5}
    about = {"versions": {}, "commit": "c", "dirty": False, "date": "2026-11-25"}
    page = gpu_kernels.markdown(about | {"rows": {"a loop": record}})
    assert "| a loop | no room | | | | | 974.0 | 2,058.0 | | 1.9 | |" in page


def test_gpu_kernel_without_room_is_refused_with_the_reason():
    options = scanrnn.Options(machine="h100", implementation="pallas_gpu")
    with jax.enable_x64(False):
        program = linear_attention.delta_rule(T=3, S=2, C=16, K=256)
        fast = scanrnn.accelerate(program.apply, plan=options)
        with pytest.raises(ValueError, match=gpu_kernels.REFUSED) as error:
            jax.eval_shape(fast, program.params, program.inputs)
    reason = re.search(gpu_kernels.REFUSED, str(error.value))[1]
    assert reason.startswith("loop ") and "float32[256,256]" in reason
