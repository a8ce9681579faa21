"""The opt-in tuner: time a handful of plans, remember the winner on disk."""

from scanrnn._tune.tuner import tuned

__all__ = ["tuned"]
