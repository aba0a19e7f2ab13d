"""A study's results: summaries, tables, plots and the page.

May import `columns`, `plan`, `study` and the common `reports`. Begin with `summary.py`.
"""
