"""The dashboard: pages for operators in a browser, at the operators' address; nothing is built or fetched elsewhere.

It may import what `http` may. Begin with `app.py`; `actions.py` has all that a page can change.
"""
