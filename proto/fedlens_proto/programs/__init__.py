"""Reading and vetting the programs of a bundle, `.pt2` and `.pte`, without running them.

It may import `errors` alone. Begin with `pt2.py`.
"""
