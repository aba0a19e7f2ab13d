"""Runs of a study as tasks of a Ray cluster (extra `ray`).

May import `compare`'s own modules; Ray only inside functions, because few have it. Begin with `runs.py`, the command's
side; `node.py` is the other one.
"""
