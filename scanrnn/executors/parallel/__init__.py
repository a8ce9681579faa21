"""Loops in parallel over time: associative scans, and products of chunks of steps."""
