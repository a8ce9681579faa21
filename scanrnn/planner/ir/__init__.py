"""The intermediate representation: a step as a graph of equations.

`graph` has the data structures, and `ops` what is known of single primitives.
"""
