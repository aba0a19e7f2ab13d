"""Errors of this package.

ExportError
├── UnknownChoice    a model, objective, optimiser or head that does not exist
├── WeightsUnusable  backbone weights that cannot be read or do not fit
├── NotExportable    a model that the programs of this version cannot express
├── NotSigned        a bundle that cannot be signed as asked
├── ParityBroken     an exported program that computes something else than the model
└── TargetExists     a folder that holds something else already
"""

from collections.abc import Collection


class ExportError(Exception):
    """No bundle was written; the message says what was wrong, what was found and what to do."""


class UnknownChoice(ExportError):
    """A name that does not exist; the message lists the existing ones."""


class WeightsUnusable(ExportError):
    """Backbone weights that cannot be fetched or read, or do not fit the backbone."""


class NotExportable(ExportError):
    """A model or a setting that the programs of this version cannot express."""


class NotSigned(ExportError):
    """A key, or a statement about a bundle, that cannot be made as asked."""


class ParityBroken(ExportError):
    """An exported program gives other numbers than the model it was made from."""


class TargetExists(ExportError):
    """The folder for the bundle holds something else; nothing in it was touched."""


def check_choice(kind: str, name: str, choices: Collection[str]) -> None:
    """Check that a name is one of the choices.

    Raises:
        UnknownChoice: It is not; the text names the `kind` of thing and lists the choices.
    """
    if name not in choices:
        raise UnknownChoice(f"{kind} {name!r} is unknown; there are {', '.join(choices)}")
