"""The client that takes part in rounds: check-ins, assignments, delivery, transport, retries, policy and events.

It may import `training`, `storage` and `engines`, and never `emulation`. Begin with `client.py`.
"""
