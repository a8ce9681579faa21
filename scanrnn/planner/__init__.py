"""The planner turns a step function into a plan. It knows jaxprs, but no cells."""

from scanrnn.planner.bodies import Body
from scanrnn.planner.decide import make_plan
from scanrnn.planner.options import Options, Tuning
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import Rules
from scanrnn.planner.trace import Traced, trace

__all__ = ["Body", "Options", "Plan", "Rules", "Traced", "Tuning", "make_plan", "trace"]
