"""What need not run step by step: affine leaves of a carry, and matrix memories.

`affine` and `memories` find them, with the files that they are named in; `obstacles`
says why a loop does not run in parallel.
"""
