"""Run the mesh cases in a process that asks for four devices when it starts."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    ["mesh_cases.py", "mesh_model_cases.py", "mesh_kernel_cases.py"],
)
def test_layers_work_on_a_mesh_of_four_devices(cases):
    devices = "--xla_force_host_platform_device_count=4"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command.append(str(HERE / cases))
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTEST_ADDOPTS", None)
    cwd = HERE.parent
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
