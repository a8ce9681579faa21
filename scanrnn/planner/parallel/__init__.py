"""What need not run step by step: affine leaves of a carry, and matrix memories.

`affine` and `memories` find them; the other files each know one form.
"""
