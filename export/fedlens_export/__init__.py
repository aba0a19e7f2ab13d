"""Export of a model and a training objective as a bundle of programs that every client can run.

It may import `fedlens_proto`. Begin with `exporting.py`.
"""
