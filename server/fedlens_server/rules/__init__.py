"""Rules between a round's updates and its method: pure functions from updates to updates.

They may import `planning`. Begin with `robust.py`; `privacy.py` is the rule that stands for all updates.
"""
