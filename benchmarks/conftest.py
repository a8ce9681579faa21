"""How `pytest benchmarks` runs: JAX's own dtypes, and results with their machine."""

import jax
import pytest

from benchmarks import machine


def pytest_addoption(parser):
    group = parser.getgroup("scanrnn benchmarks")
    group.addoption(
        "--budget", type=float, default=2.0, help="seconds of timing for each row"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: four shapes, lax.scan against scanrnn")
    config.addinivalue_line("filterwarnings", "default")  # peers may warn


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="session")
def machine_prepared():
    """Settings that are made once, before anything runs."""
    machine.prepare()


@pytest.fixture(scope="session")
def limits(request, machine_prepared):
    """Measured peaks of this machine, kept for the results file."""
    with jax.enable_x64(False):
        request.config.machine_limits = machine.limits()
    return request.config.machine_limits


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info.clear()  # names the host
    machine_info.update(machine.describe())
    machine_info["limits"] = getattr(config, "machine_limits", None)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_commit_info(config, commit_info):
    del config
    for key in set(commit_info) - {"id", "time", "dirty"}:
        del commit_info[key]
