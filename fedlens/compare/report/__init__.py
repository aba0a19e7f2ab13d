"""What a study shows in the end: summaries, tables, plots and the page.

It may import `columns`, `plan` and `study`. Begin with `summary.py`.
"""
