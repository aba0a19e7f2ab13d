"""What the server decides, without sockets: clients, tasks, rounds, updates, evaluation, recovery and garbage.

It may import `methods`, `planning` and `store`, and never `http`. Begin with `rounds.py`, then `view.py`.
"""
