"""A body as one kernel for an NVIDIA GPU: layouts of a step, and a view for each.

`view` says what a program of a kernel runs, and `triton` runs a view. There are views
for elementwise steps (`lane_kernel`), states that are matrices (`state_kernel`), parts
of the batch (`block_kernel`) and slices of the features (`slice_kernel`).
"""
