"""How `pytest benchmarks` runs: without 64-bit types; results describe the machine."""

import os

import jax
import pytest

from benchmarks import machine
from benchmarks.race import MIN_ROUNDS
from benchmarks.replay import CLOCK, Row, Rows


def pytest_addoption(parser):
    group = parser.getgroup("scanrnn benchmarks")
    group.addoption(
        "--budget", type=float, default=12.0, help="most seconds of timing of a row"
    )
    group.addoption(
        "--least", type=int, default=MIN_ROUNDS, help="least rounds, whatever they take"
    )


def pytest_configure(config):
    flags = os.environ.get("XLA_FLAGS", "")
    if "optimization_level=0" in flags and not config.option.collectonly:
        raise pytest.UsageError(
            "XLA_FLAGS: tests compile without optimisation, and so would benchmarks; "
            "run `pytest benchmarks` on its own"
        )


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="session")
def machine_prepared():
    """Makes the settings of the process once, before anything runs."""
    machine.prepare()


@pytest.fixture(scope="session")
def limits(request, machine_prepared):
    """The measured peaks of this machine, which also go to the results file."""
    with jax.enable_x64(False):
        request.config.machine_limits = machine.limits()
    return request.config.machine_limits


@pytest.fixture(scope="session")
def rows(request):
    """The rows that ran. Benchmarks of one row share it; the report has all records."""
    request.config.rows = Rows()
    return request.config.rows


@pytest.fixture
def budget(request):
    """The most seconds for a row, and the least number of its rounds."""
    return [request.config.getoption(name) for name in ("--budget", "--least")]


def report_one(benchmark, row: Row, name, contender, mode) -> None:
    """Gives one contender's times to pytest-benchmark; skips it if it is absent.

    Raises:
      AssertionError: if the answers of the contender are wrong.
    """
    assert contender not in row.failed, f"wrong, so no times: {row.failed[contender]}"
    seconds = row.seconds.get((contender, mode))
    if not seconds:
        pytest.skip(row.record["contenders"].get(contender, {}).get("absent", "absent"))
    benchmark.group = f"{name}, {mode}"
    CLOCK.load(seconds)
    benchmark.pedantic(lambda: None, rounds=len(seconds))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Adds the records of rows, which hold the times of all rounds."""
    del benchmarks
    output_json["rows"] = config.rows.records if hasattr(config, "rows") else []
    for benchmark in output_json["benchmarks"]:
        benchmark["stats"].pop("data", None)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info.clear()  # it names the host
    machine_info.update(machine.describe())
    machine_info["limits"] = getattr(config, "machine_limits", None)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_commit_info(config, commit_info):
    del config
    for key in set(commit_info) - {"id", "time", "dirty"}:
        del commit_info[key]
