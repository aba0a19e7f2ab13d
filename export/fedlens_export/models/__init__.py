"""Models by name, one file an entry: backbones, whole models, heads, and models of one's own.

It may import `network`, `errors` and `hyper`. Begin with `backbones.py`.
"""
