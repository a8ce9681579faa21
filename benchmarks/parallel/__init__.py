"""Loops that are affine in their carry, run in several ways: counted, and timed."""
