"""Reading and vetting the programs of a bundle, `.pt2` and `.pte`, without running them, and who signed them.

It may import `errors` and messages alone; `pt2_values.py` and `pt2_loading.py` need torch, `pte_runtime.py` needs
ExecuTorch, so nothing here imports these. Begin with `pt2.py`; signatures are in `statements.py`.
"""
