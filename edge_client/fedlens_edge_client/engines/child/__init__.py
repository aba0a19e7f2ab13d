"""Programs in a process of their own: what a hostile program can reach there is tensors, time and memory.

`child.py`, `engine.py` and `children.py` run in the client; `process.py`, `confinement.py` and `known.py` in the child;
`link.py` and `shared.py` say what passes between them. Read `engine.py` first.
"""
