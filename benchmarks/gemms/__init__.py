"""The tables and figures of NVIDIA's guide to recurrent layers, for our plans.

`table` has the products of a plan beside the guide's formulas, `sweeps` times them on
this CPU, `costs` compiles a layer for machines that are not here, and `page` and
`picture` show all of it.
"""
