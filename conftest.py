"""Settings for every test.

64-bit JAX is on in tests: oracles are float64 with tight tolerances, and a test that is
about float32 or bfloat16 says so on its arrays.  Doctests are what a user would type,
so they run with JAX's own default (32-bit), whichever tests share their process.
"""

import gc
import os
import signal
import sys
import tempfile

# Before JAX is imported: tests are about answers, and a CPU gives the same ones
# everywhere.  Set JAX_PLATFORMS to run them elsewhere.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Before Keras is: it reads this once.
os.environ["KERAS_BACKEND"] = "jax"
# Tests compile thousands of small programs and run each once: what costs time is the
# compiler, and what it leaves out changes no answer that a test looks at.
FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if sys.version_info < (3, 12):
    # The emitter before today's takes half of the time.  Newer Pythons have a JAX that
    # no longer knows it, so that with them today's is tested.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
# A program that was compiled once is not compiled again, be it by another test, by the
# other worker of pytest-xdist or by a process that a test starts: all get this folder
# from whoever came first, who takes it away.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    FOLDER = tempfile.TemporaryDirectory(prefix="scanrnn-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = FOLDER.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Traces leave many objects alive. To look at all of them again and again took a fifth
# of the time; without any look, memory that is never used twice took as long.
gc.set_threshold(20_000, 10, 100)

# A shell script lets its background jobs ignore this signal, which tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)

# Pages of the documentation whose examples take four seconds or more.
LONG_PAGES = {"coming_from.md", "faq.md", "layers.md"}


@pytest.fixture
def in_32_bit():
    """For tests of whole programs, such as training, as users run them."""
    with jax.enable_x64(False):
        yield


@pytest.fixture(autouse=True)
def _doctests_run_in_32_bit(request):
    if isinstance(request.node, pytest.DoctestItem):
        with jax.enable_x64(False):
            yield
    else:
        yield


def pytest_collection_modifyitems(items):
    """Pages that take long, or that tests of walks run too, are left to slow tests."""
    for item in items:
        page = item.path.name
        if isinstance(item, pytest.DoctestItem) and (
            page in LONG_PAGES or item.path.parent.name == "start"
        ):
            item.add_marker(pytest.mark.slow)
