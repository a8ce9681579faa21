"""Nonlinear recurrences in parallel over time, by Newton's method."""

from scanrnn._solve.newton import Solved as Solved
from scanrnn._solve.solver import solve as solve
