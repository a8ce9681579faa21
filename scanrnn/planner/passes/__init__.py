"""Passes from graph to graph that keep the meaning of the step.

`tidy` brings different ways to write one step to one form, `rewrite` splits and merges
products, and `equal` computes equal values once. The others give a loop a layout, or a
precision, that suits a machine.
"""
