"""Whether our kernels could run a layer."""

import bisect
from collections.abc import Callable
from typing import Any

from scanrnn._advise.layers import Sizes, refusal_of
from scanrnn._scan import EXECUTORS, by_name
from scanrnn.cells import Cell
from scanrnn.machines import Machine

# Sizes of a carry to look for the largest one that fits.
POWERS = tuple(2**n for n in range(5, 14))


def kernel(cell: Cell, sizes: Sizes, dtype: str, machine: Machine) -> str:
    """What a kernel that runs the whole loop would do with a layer, in words.

    "" on a machine for which there are no kernels. Nothing is compiled.
    """
    for executor in EXECUTORS.values():
        if getattr(executor, "PLATFORM", None) == machine.platform:
            return _told(executor, cell, sizes, dtype, machine)
    return ""


def _told(executor: Any, cell, sizes, dtype, machine) -> str:
    refused = refusal_of(executor, executor.refuse, cell, sizes, dtype, machine)
    # The memory alone is a quick question.
    check = getattr(executor, "holds", executor.refuse)

    def fits(H: int) -> bool:
        other = sizes._replace(H=H, D=H if sizes.D == sizes.H else sizes.D)
        try:
            reason = refusal_of(executor, check, cell, other, dtype, machine)
        except (ValueError, OverflowError):
            return False  # the cell cannot have these sizes
        return reason is None

    words = ["these sizes fit" if refused is None else f"not these sizes: {refused}"]
    most = _largest(fits)
    if most is not None:
        words.append(f"of the powers of two, H fits up to {most}")
    if refused is None or most is not None:
        words += filter(None, [getattr(executor, "WEIGHTS", None)])
    asked = by_name(executor, machine)
    when = "only if you ask for it" if asked else "if the estimate prefers it"
    return f'implementation="{executor.NAME}", {when}: {"; ".join(words)}'


def _largest(fits: Callable[[int], bool]) -> int | None:
    """The largest power of two that fits; None if none or all of them do.

    If one does not fit, larger ones do not either.
    """
    place = bisect.bisect_left(POWERS, True, key=lambda H: not fits(H))
    return POWERS[place - 1] if 0 < place < len(POWERS) else None
