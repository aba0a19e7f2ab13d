"""A client's computation on its photos: local training, features, views, evaluation, statistics, prediction.

A module here may import `engines` and `storage`, but not `client`. Begin with `local_training.py`.
"""
