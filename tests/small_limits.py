"""For `pytest -p tests.small_limits`: the limits of a machine, of small products.

All kinds of limits are measured, as they are without it, in a second.
"""

import functools

from benchmarks import machine, products, products_alone


def pytest_configure():
    products.SIZES = products.SIZES[:1]
    products_alone.products_alone = functools.partial(
        products_alone.products_alone, [(3, 2, 4, 8, "float32")]
    )
    machine.gemm_peak = functools.partial(machine.gemm_peak, n=32)
    machine.bandwidth = functools.partial(machine.bandwidth, mebibytes=1)
