"""Output for people: tables, HTML pages, and reports on blobs, bundles, clients, programs and tasks.

May import every package but no command, study or demo. Begin with `tables.py` and `page.py`.
"""
