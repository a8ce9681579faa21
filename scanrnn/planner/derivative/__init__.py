"""The derivative of a loop: what is kept, and what the reverse loop runs.

`gradient` says where tangents enter, `regions` and `saved` choose what is kept,
`tangent` has the rules of single equations, and `steps` makes the graphs.
"""
