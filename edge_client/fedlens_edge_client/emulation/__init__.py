"""What only emulated clients have: fleets, partitions of photos, fault plans, a transport with faults.

It may import everything of the client; nothing of the client imports it. Begin with `fleet/config.py`.
"""
