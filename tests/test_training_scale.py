"""Training on several devices and with several processes."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

CASES = pathlib.Path(__file__).with_name("training_mesh_cases.py")
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 40


@pytest.mark.slow
def test_training_works_on_four_devices():
    devices = "--xla_force_host_platform_device_count=4"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CASES]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTEST_ADDOPTS", None)
    cwd = CASES.parents[1]
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def start(folder, processes, *words, places=None):
    """Start all processes of a run on loopback; `places` has variables for each."""
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(TEXT)
    command = [sys.executable, "-m", "scanrnn", "train", "--precision", "float32"]
    command += ["--text", str(folder / "text.txt"), "--out", str(folder / "run")]
    command += "--features 8 --layers 1 --batch 8 --window 6 --sample 5".split()
    command += words
    if processes == 1 or places:
        several = [[]] * processes
    else:
        place = ["--coordinator", f"localhost:{free_port()}"]
        place += ["--num-processes", str(processes)]
        several = [[*place, "--process-id", str(n)] for n in range(processes)]
    return [
        subprocess.Popen(
            [*command, *more],
            env=os.environ | place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for more, place in zip(several, places or [{}] * processes, strict=True)
    ]


def wait_for(process, words):
    """Wait for the line that starts with these words; JAX's runtime prints others."""
    for line in process.stdout:
        if line.startswith(words):
            return line
    raise AssertionError(process.communicate(timeout=10))


def finish(processes):
    outputs = [process.communicate(timeout=150) for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs


def losses_of(folder):
    lines = (folder / "run" / "log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row.get("loss", row.get("held_out")) for row in rows]


@pytest.mark.slow
def test_run_of_several_processes_is_that_of_one_and_goes_on(tmp_path):
    words = ["--evaluate-every", "4"]
    finish(start(tmp_path / "one", 1, "--steps", "8", *words))
    (output, _), *_ = finish(start(tmp_path / "several", 2, "--steps", "8", *words))
    assert "write no sample.txt" in output and "scanrnn sample --out" in output
    want, got = (losses_of(tmp_path / name) for name in ("one", "several"))
    np.testing.assert_allclose(got, want, rtol=1e-4)
    # One process reads a checkpoint that several have saved.
    sample = [sys.executable, "-m", "scanrnn", "sample", "--length", "7"]
    sample += ["--out", str(tmp_path / "several" / "run")]
    done = subprocess.run(sample, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip("\n")) > 0


@pytest.mark.slow
def test_run_of_which_a_process_is_killed_ends_and_goes_on(tmp_path):
    words = ["--steps", "600", "--evaluate-every", "20"]
    first, second = start(tmp_path, 2, *words)
    wait_for(first, "step    20: loss")
    wait_for(first, "step    40: loss")  # the step before is saved by then
    second.send_signal(signal.SIGKILL)
    second.communicate()
    _, errors = first.communicate(timeout=100)
    assert first.returncode != 0
    assert "error: process 0 lost another one" in errors
    assert "start all of them again to go on" in errors
    first, second = start(tmp_path, 2, *words)
    line = wait_for(first, "Going on after step ")
    assert int(line.split()[4].rstrip(":")) >= 20
    for process in (first, second):
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_run_of_which_one_process_is_told_to_stop_ends_all_with_its_signal(tmp_path):
    processes = start(tmp_path, 2, "--steps", "100000", "--evaluate-every", "20")
    wait_for(processes[0], "step    20: loss")
    # All processes of another run raise an error.
    others = start(tmp_path, 2, "--steps", "100000", "--evaluate-every", "20")
    errors = [process.communicate(timeout=150)[1] for process in others]
    assert [process.returncode for process in others] == [1, 1]
    assert f"is in use by process {processes[0].pid} on" in errors[0]
    assert "was refused to process 0, which says why" in errors[1]
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=150) for process in processes]
    wanted = [128 + signal.SIGTERM] * 2
    assert [process.returncode for process in processes] == wanted, outputs


@pytest.mark.slow
def test_processes_find_each_other_where_a_cluster_started_them(tmp_path):
    """Variables of Slurm give every process its number."""
    job = {"SLURM_JOB_ID": str(free_port()), "SLURM_STEP_NODELIST": "localhost"}
    job |= {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    places = [job | {"SLURM_PROCID": n, "SLURM_LOCALID": n} for n in "01"]
    words = "--distributed", "--steps", "3"
    (output, _), _ = finish(start(tmp_path, 2, *words, places=places))
    assert "2 devices {'data': 2, 'gates': 1} of 2 processes" in output
