"""Run `mesh_cases` on two devices, which a process must ask for when it starts."""

import os
import pathlib
import subprocess
import sys

CASES = pathlib.Path(__file__).with_name("mesh_cases.py")


def test_layers_work_on_a_mesh_of_two_devices():
    devices = "--xla_force_host_platform_device_count=2"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CASES]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTEST_ADDOPTS", None)
    cwd = CASES.parents[1]
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
