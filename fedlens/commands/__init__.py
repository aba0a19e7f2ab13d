"""The sub-commands, one module each; heavy imports stand inside the functions, so that `--help` stays quick.

May import everything. Begin with `options.py`.
"""
