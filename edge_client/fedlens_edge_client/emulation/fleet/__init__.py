"""Many emulated clients on one machine, each a whole `EdgeClient`, in worker processes.

May import the client, `partitions` and faults. Begin with `config.py`, then `running.py` (the parent) and `worker.py`.
"""
