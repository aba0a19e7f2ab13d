"""The `fedlens` command, the demo and studies, which combine server, clients and export.

May import every package; nothing imports it. Begin with `cli.py` and `commands/`.
"""
