"""Methods as the engine sees them: phases with local plans, task settings, options, and checks of bundles.

It imports `fedlens_proto` alone. Begin with `method.py`.
"""
