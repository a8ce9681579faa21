"""The derivative of a loop: what is kept, and what the reverse loop runs.

`gradient` says where tangents enter. `regions`, `saved`, `reads` and `checkpoints`
choose what is kept, and `narrowed` what is kept in place of whole carries. `tangent`
has the rules of single equations, and `steps` makes the graphs.
"""
