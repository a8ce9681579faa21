"""Commands of `python -m scanrnn`, one in each file. `add` adds one to the parser."""

from scanrnn._commands import export as export
from scanrnn._commands import plan as plan
