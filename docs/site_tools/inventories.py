"""Links into other projects' pages, without a network.

Sphinx usually fetches an inventory from each project's site. Here the few names that
our pages use are written down in `docs/inventories`, one line each, and packed into
the form that Sphinx reads.
"""

import zlib
from pathlib import Path


def mapping(folder: Path, build: Path) -> dict[str, tuple[str, str]]:
    """What `intersphinx_mapping` wants: for each project its site and inventory.

    Args:
        folder: of text files, a project each. The first line is the address of its
            pages; each other one a name, its role, and where it stands there.
        build: where the packed inventories go.
    """
    build.mkdir(exist_ok=True)
    found = {}
    for path in sorted(folder.glob("*.txt")):
        site, *lines = path.read_text().split("\n")
        packed = build / f"{path.stem}.inv"
        packed.write_bytes(_inventory(path.stem, [line for line in lines if line]))
        found[path.stem] = (site, str(packed))
    return found


def _inventory(project, lines):
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    rows = (line.split() for line in lines)
    body = "".join(f"{name} {role} 1 {where} -\n" for name, role, where in rows)
    return head.encode() + zlib.compress(body.encode())
