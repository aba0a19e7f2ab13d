"""Sockets that the server listens on, its certificate, and the addresses at their other ends.

It may import what `http` may. Begin with `listening.py`.
"""
