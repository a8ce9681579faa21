"""What a step costs on an H100 and on a TPU v5e, by their real compilers.

The compilers need no such device: see `targets`. Numbers are counts from compiled
code, estimates of the compiler, and bytes by its buffer assignment; never times.
"""
