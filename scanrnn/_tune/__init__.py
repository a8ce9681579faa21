"""The tuner, used only on request: time a few plans, and keep the choice on disk."""

from scanrnn._tune.tuner import tuned

__all__ = ["tuned"]
