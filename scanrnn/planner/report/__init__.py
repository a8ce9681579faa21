"""A plan in words: `summary` is what `print(plan)` shows, `details` the long form."""
