"""What a client keeps on disk: downloads, client state, the outbox, and the albums that it reads photos from.

It imports neither `client` nor `training`. Begin with `state.py`.
"""
