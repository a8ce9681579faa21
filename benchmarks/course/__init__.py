"""Short studies of the source documents, on one page: `python -m benchmarks.course`.

Each section is a module with `measure(quick)`, which gives plain numbers, and
`report(found)`, which gives their part of the page.
"""
