"""Commands of operators over the admin API: tokens, clients, the log of changes.

It may import what `fedlens.commands` may. Begin with `profile.py`.
"""
