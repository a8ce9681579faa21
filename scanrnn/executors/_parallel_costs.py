"""What XLA's programs take for loops that are parallel over time, for estimates."""

from scanrnn.planner.rule_groups import ParallelCosts

# The kernels are those on a GPU. On a CPU and a TPU nothing was counted.
PARALLEL = ParallelCosts(
    # Compiled for an H100, training a leaky sum takes 17, 27, 36 and 46 kernels for
    # 128, 2048, 32768 and 1048576 steps, some 8 of them outside of both scans.
    fused=3,
    # A choice: not measured.
    passes=4,
    # Rounded from programs compiled for an H100 (their launches stand with
    # `Rules.memories` in `_xla.py`); so are the next two.
    chunk=50,
    correcting=60,
    halving=10,
    # A choice: not measured.
    chunk_passes=4,
)
