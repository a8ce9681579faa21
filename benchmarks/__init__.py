"""Side-by-side speed of scanrnn, lax.scan and their peers, gated on correctness."""
