"""Code motion: what runs before the loop, in it and after it. Read `classify` first."""
