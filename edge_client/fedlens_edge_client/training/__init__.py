"""What a client does with its photos: local training, features, views, evaluation, statistics, prediction.

It may import `engines` and `storage`. Begin with `local_training.py`.
"""
