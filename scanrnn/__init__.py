"""scanrnn: write one time step as ordinary JAX; it runs like a recurrent kernel.

The subpackages that need Flax (`nnx`, `linen`, `interop`, `serving`, `training`) are
imported only when they are first asked for. So `import scanrnn` alone does not import
Flax.
"""

import importlib
from typing import TYPE_CHECKING

from scanrnn import cells as cells
from scanrnn._accelerate import accelerate as accelerate
from scanrnn._advise import Advice as Advice
from scanrnn._advise import advise as advise
from scanrnn._allocator import tune_allocator as tune_allocator
from scanrnn._scan import plan as plan
from scanrnn._scan import scan as scan
from scanrnn._selfcheck import SelfCheck as SelfCheck
from scanrnn._selfcheck import selfcheck as selfcheck
from scanrnn._solve import Solved as Solved
from scanrnn._solve import solve as solve
from scanrnn._watch import plans as plans
from scanrnn.machines import Machine as Machine
from scanrnn.planner import Options as Options
from scanrnn.planner import Plan as Plan

if TYPE_CHECKING:
    from scanrnn import interop as interop
    from scanrnn import linen as linen
    from scanrnn import nnx as nnx
    from scanrnn import serving as serving
    from scanrnn import training as training

__version__ = "0.1.0.dev0"

_LAZY = ("interop", "linen", "nnx", "serving", "training")


def __getattr__(name: str) -> object:
    """Import a subpackage when it is first asked for."""
    if name in _LAZY:
        return importlib.import_module(f"scanrnn.{name}")
    raise AttributeError(
        f"module 'scanrnn' has no attribute {name!r}; cells are in scanrnn.cells, "
        "layers in scanrnn.nnx and scanrnn.linen"
    )


def __dir__() -> list[str]:
    """List all names, also of subpackages that are not imported yet."""
    return sorted({*globals(), *_LAZY} - {"importlib", "TYPE_CHECKING"})
