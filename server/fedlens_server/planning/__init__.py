"""What a method is to the engine: its phases and local plans, the settings of its task, and whether both fit a bundle.

It imports `fedlens_proto` alone. Begin with `method.py`.
"""
