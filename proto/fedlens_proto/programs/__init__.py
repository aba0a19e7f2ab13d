"""Reading and vetting the programs of a bundle, `.pt2` and `.pte`, without running them, and who signed them.

It may import `errors` and messages alone. Begin with `pt2.py`; signatures are in `statements.py`.
"""
