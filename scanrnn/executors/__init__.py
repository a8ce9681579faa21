"""Ways to run a plan: one file each, with `NAME`, `supports` and `run`.

`run(plan, weights, init, xs)` takes and returns flat lists of arrays.
"""

from scanrnn.executors import planned, scan

# In order of preference: the first that supports a plan runs it.
EXECUTORS = {executor.NAME: executor for executor in (planned, scan)}
PROGRAMS = {name: executor.run for name, executor in EXECUTORS.items()}
