"""What a step costs on an H100 and on a TPU v5e, according to their real compilers.

The compilers need no such device: see `targets`. Numbers are counts in compiled code,
estimates of the compiler, and bytes from its buffer assignment. They are never times.
"""
