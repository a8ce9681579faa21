"""Do what a reader does: copy the blocks of a page in order, and run them.

python -m tests.walks README.md
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Tests leave out these commands: the package is installed already.
DONE = ("git clone", "pip install", "make ")
# Programs of several pages in one process, each as if it were alone there.
RUN = "import runpy, sys; [runpy.run_path(a, {}, '__main__') for a in sys.argv[1:]]"


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page: the language of each, and the text that a reader copies."""
    found = re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), re.M | re.S)
    return [(kind, copied(text)) for kind, text in found]


def copied(text: str) -> str:
    """A block without prompts and without what it prints."""
    if not text.startswith(">>> "):
        return text
    lines = [line for line in text.splitlines() if line[:3] in (">>>", "...")]
    return "".join(f"{line[4:]}\n" for line in lines)


def walk(folder: Path, *pages: Path) -> str:
    """Run all blocks of pages in an empty folder, the Python ones as a program a page.

    Args:
        folder: where the commands run.
        pages: pages in Markdown.

    Returns:
        What was printed.

    Raises:
        subprocess.CalledProcessError: if a block fails.
    """
    shell, programs = "", []
    for page in pages:
        found = blocks(page)
        shell += "".join(text for kind, text in found if kind == "sh")
        programs.append(f"copied_{page.stem}.py")
        python = "".join(text for kind, text in found if kind == "python")
        (folder / programs[-1]).write_text(python)
    lines = shell.splitlines()
    commands = [line for line in lines if not line.startswith(DONE)]
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    # A reader's programs are compiled as well as XLA can; see conftest.py.
    theirs = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment = theirs | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    run = shlex.join(["python", "-c", RUN, *programs])
    script = "\n".join(["set -euo pipefail", run, *commands])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(walk(Path(name), *map(Path, sys.argv[1:])))
