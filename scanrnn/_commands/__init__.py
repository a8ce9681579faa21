"""Commands of `python -m scanrnn`, a file for each: `add` puts it into the parser."""

from scanrnn._commands import export as export
from scanrnn._commands import plan as plan
