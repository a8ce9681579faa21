"""Commands of `python -m scanrnn`, one in each file, and checks of their options."""

from scanrnn._commands import export as export
from scanrnn._commands import given as given
from scanrnn._commands import plan as plan
