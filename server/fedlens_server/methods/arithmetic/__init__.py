"""Arithmetic that several methods share: linear combinations, clustering, label distributions inferred from models.

Arrays in, arrays out; it may import `planning`. Begin with `linear_combination.py`.
"""
