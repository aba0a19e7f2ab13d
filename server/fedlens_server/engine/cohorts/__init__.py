"""The members of a round: their records, who is drawn, and what they download.

It may import what `engine` may. Begin with `members.py`.
"""
