"""Equations as MathML: browsers draw it themselves, without a script or a network."""

import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

# One letter each, which would be set as a product of letters.
_WORD = re.compile(r'((?:<mi mathvariant="normal">\w</mi>){2,})')


def setup(app):
    """Makes `html_math_renderer = "mathml"` known."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mathml(latex: str, display: str) -> str:
    """An equation as MathML, its words in one piece."""
    text = convert(latex, display=display)
    return _WORD.sub(lambda m: f"<mi>{re.sub('<[^>]*>', '', m[1])}</mi>", text)


def _inline(writer, node):
    writer.body.append(mathml(node.astext(), "inline"))
    raise SkipNode


def _block(writer, node):
    latex = node.astext()
    # What `.. math::` aligns at an ampersand.
    if "&" in latex or r"\\" in latex:
        latex = rf"\begin{{align*}}{latex}\end{{align*}}"
    writer.body.append(f'<div class="math">{mathml(latex, "block")}</div>')
    raise SkipNode
