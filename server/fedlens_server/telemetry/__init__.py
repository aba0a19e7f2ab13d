"""The events that a server logs, how lines are written and limited, and its metrics.

It may import no other room. Begin with `events.py`.
"""
