"""Blocks of code without the empty line at their end, which doctest needs."""

from docutils import nodes


def setup(app):
    """Connects to Sphinx."""
    app.connect("doctree-read", _strips)
    return {"parallel_read_safe": True}


def _strips(app, doctree):
    for block in doctree.findall(nodes.literal_block):
        text = block.astext()
        # Only what is still one text: a block of one kind, not highlighted by hand.
        if block.rawsource == text != text.rstrip("\n"):
            block.rawsource = text.rstrip("\n")
            block.children = [nodes.Text(block.rawsource)]
