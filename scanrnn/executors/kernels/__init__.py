"""A body as one kernel: the kernel of a TPU, and what all kernels share."""
