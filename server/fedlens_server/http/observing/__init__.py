"""Requests as operators observe them: ids, lines in the log.

It may import what `http` may. Begin with `requests.py`.
"""
