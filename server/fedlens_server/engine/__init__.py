"""The engine: what the server decides, without sockets: clients, tasks, rounds, updates, evaluation, recovery, garbage.

It may import `methods`, `planning` and `store`, and never `http`. Begin with `view.py`, then `rounds.py`.
"""
