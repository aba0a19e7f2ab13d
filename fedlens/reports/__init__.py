"""What the commands print and draw: tables, and reports on blobs, bundles, clients, programs and tasks.

It may import every package but no command, study or demo. Begin with `tables.py`.
"""
