"""The client that takes part in rounds: check-ins, assignments, delivery, transport, retries and events.

A module here may import `training`, `storage` and `engines`, but not `emulation`. Begin with `client.py`.
"""
