"""Reading and vetting the programs of a bundle, `.pt2` and `.pte`, without running them.

It imports `errors` alone. Begin with `pt2.py`.
"""
