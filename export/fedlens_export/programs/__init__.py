"""Programs of a bundle and the ways to lower them: steps, views, `.pt2`, `.pte`, ONNX, int8, and how close they are.

It may import `objectives` and `network`, and never `models`. Begin with `steps.py`.
"""
