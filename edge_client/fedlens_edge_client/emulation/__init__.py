"""Emulated clients: fleets, partitions of photos, fault plans and a transport with faults.

May import the whole client; nothing of the client imports it. Begin with `fleet/config.py`.
"""
