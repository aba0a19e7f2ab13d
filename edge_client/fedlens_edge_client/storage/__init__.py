"""Data on a client's disk: downloads, features, client state, the outbox, and albums of photos.

A module here imports neither `client`, `training` nor `engines`. Begin with `state_folder.py`.
"""
