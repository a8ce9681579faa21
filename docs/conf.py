"""How Sphinx builds the site: `make docs`.

The source folder is the root of the repository, so that links between pages, notebooks
and reports are the same files here and there.
"""

import os
import sys
from pathlib import Path

# Pictures of cells are drawn on a CPU, and each program runs once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from site_tools import inventories  # noqa: E402

import scanrnn  # noqa: E402

project = "scanrnn"
author = "the scanrnn authors"
copyright = "2026, the scanrnn authors. Apache-2.0"
version = release = scanrnn.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "site_tools.mathml",
    "site_tools.autodoc",
    "site_tools.blocks",
    "site_tools.plots",
]

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "notebooks/*.ipynb",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "CHANGELOG.md",
]
# Folders that are not entered at all.
exclude_patterns = [".*", "build", "dist", "runs", "scanrnn", "tests", "**/.*"]

# Pages are Markdown; notebooks are shown as they are committed, and not run.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"

# Single backticks in docstrings are code, and a link where they name something.
default_role = "py:obj"
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# A signature has the types already.
napoleon_attr_annotations = False
napoleon_custom_sections = [("Reference", "References")]

intersphinx_mapping = inventories.mapping(HERE / "inventories", HERE.parent / "build")

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "sphinx_book_theme"
html_title = "scanrnn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
templates_path = ["_templates"]
html_additional_pages = {"index": "to_front_page.html"}
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
