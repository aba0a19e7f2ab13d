"""Operators' requests: tasks made, shown and steered; tokens and the rights they give; the log of changes.

It may import all of the engine; of it the engine imports `access.py` alone. Begin with `tasks.py`.
"""
