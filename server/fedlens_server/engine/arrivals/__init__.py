"""Rounds that take the clients that come: who is here, who has taken part, who gets a place.

It may import what `engine` may. Begin with `places.py`.
"""
