"""The demo: a whole federation on one machine, and its report.

May import every package and `reports`, but not `compare`. Begin with `demo.py`.
"""
