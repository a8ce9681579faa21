"""Timed on a GPU: the ways to run a loop, against `lax.scan` and torch's cuDNN."""
