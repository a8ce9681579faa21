"""scanrnn: write one time step as ordinary JAX; it runs like a recurrent kernel."""

from scanrnn._scan import scan as scan
