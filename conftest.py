"""Settings for every test.

64-bit JAX is on in tests: oracles are float64 with tight tolerances, and a test that is
about float32 or bfloat16 says so on its arrays.  Doctests are what a user would type,
so they run with JAX's own default (32-bit), whichever tests share their process.
"""

import os

# Before JAX is imported: tests are about answers, and a CPU gives the same ones
# everywhere.  Set JAX_PLATFORMS to run them elsewhere.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile hundreds of small programs and run each once: LLVM's optimisations
# cost more than half of the time and change no answer that a test looks at.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

import jax
import pytest

jax.config.update("jax_enable_x64", True)


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
