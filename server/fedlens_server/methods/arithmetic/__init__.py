"""Arithmetic that several methods share: weighted sums, clustering, labels inferred from weights.

Arrays in, arrays out; it may import `planning`. Begin with `weighted_mean.py`.
"""
