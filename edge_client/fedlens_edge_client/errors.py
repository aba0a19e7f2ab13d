"""Errors of this package.

EdgeClientError
└── EngineError     a bundle's program, or what it was asked to run (`engines/__init__.py`)
"""


class EdgeClientError(Exception):
    """Something that this client cannot do; the message says what, what was found and what helps."""
