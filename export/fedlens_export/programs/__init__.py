"""Programs of a bundle, their lowering to `.pt2`, `.pte`, ONNX and int8, and the comparison with the model.

It may import `objectives` and `network`, and never `models`. Begin with `steps.py`.
"""
