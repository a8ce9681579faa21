"""What autodoc does not know of this package."""

import re

from sphinx.ext import intersphinx
from sphinx.util import inspect as sphinx_inspect

_ARXIV = re.compile(r"arXiv:(\d+\.\d+)")
_OBJECT = re.compile(r"<[^<>]*>")
_PRIVATE = re.compile(
    r"\._\w+(?=\.)|\.planner\.(plan|options|bodies|rules|report\.summary)(?=\.)"
)


def setup(app):
    """Connects all of it to Sphinx."""
    app.connect("autodoc-process-docstring", _links_papers)
    app.connect("autodoc-process-signature", _shows_arguments)
    app.connect("autodoc-skip-member", _skips_numbered_fields)
    app.connect("missing-reference", _finds_public_names)
    return {"parallel_read_safe": True}


def _links_papers(app, what, name, value, options, lines):
    """An arXiv number becomes a link."""
    link = r"`arXiv:\1 <https://arxiv.org/abs/\1>`__"
    lines[:] = [_ARXIV.sub(link, line) for line in lines]


def _shows_arguments(app, what, name, value, options, signature, returns):
    """What a reader would write, where Python shows something else."""
    if what == "class" and signature and signature.startswith("(*args"):
        # Flax's metaclass hides the arguments of a class; its constructor has them.
        own = sphinx_inspect.signature(value.__init__, bound_method=True)
        own = own.replace(return_annotation=own.empty)
        signature = sphinx_inspect.stringify_signature(own, unqualified_typehints=True)
    if signature:
        # A default that is a class or an object: its name, or no more than that.
        signature = re.sub(r"<class '([\w.]+)'>", r"\1", signature)
        while _OBJECT.search(signature):
            signature = _OBJECT.sub("...", signature)
    return signature, returns


def _skips_numbered_fields(app, what, name, value, skip, options):
    """Fields of a NamedTuple: `Attributes:` has them, Python says "alias for 0"."""
    return True if type(value).__name__ == "_tuplegetter" else None


def _finds_public_names(app, env, node, content):
    """A link to where a name is defined becomes one to where it is public."""
    target = node.get("reftarget", "")
    public = _PRIVATE.sub("", target)
    if node.get("refdomain") != "py" or public == target:
        return None
    node["reftarget"] = public
    domain = env.get_domain("py")
    found = domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], public, node, content
    )
    return found or intersphinx.missing_reference(app, env, node, content)
