"""Ways to run a plan: one file each, with `NAME`, `supports` and `run`."""

from scanrnn.executors import planned, scan

# In order of preference: the first that supports a plan runs it.
EXECUTORS = {e.NAME: e for e in (planned, scan)}
