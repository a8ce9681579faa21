"""Run a plan, whoever lowers its bodies: the work around the loop, and derivatives.

`program` runs the whole plan, `loop` its loop with a derivative of its own, and
`tangent` the loop of tangents and its transpose.
"""
