"""Copies of a state: backups, and moves to another database or other place of blobs.

It imports the store's other modules, which import nothing of it. Begin with `moving.py`.
"""
