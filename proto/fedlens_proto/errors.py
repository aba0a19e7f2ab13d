"""Errors of this package.

ProtoError
├── BlobError        bytes that are no well-formed blob, or not the expected one
├── ManifestError    a bundle that cannot be used
├── PhotoUnreadable  a file that cannot be decoded as a photo
├── PlanRefused      a local plan that does not fit a bundle
├── PluginError      a plug-in that cannot be found or used
├── ProgramRefused   a program file that is not safe to load
├── StatementRefused a statement about a bundle that a client does not take
└── WireError        a message that cannot be read
"""


class ProtoError(Exception):
    """Input from outside is not valid; the message says what was expected and what was found."""


class BlobError(ProtoError):
    """Bytes that are no well-formed blob, or a blob that is not the expected one."""


class ManifestError(ProtoError):
    """A bundle that cannot be used; export it again or fetch it anew."""


class PhotoUnreadable(ProtoError):
    """A file that cannot be decoded as a photo; leave it out and say so."""


class CodedRefusal(ProtoError):
    """Something well formed that is refused all the same.

    Attributes:
        code: The kind of fault, equal in every language.
    """

    def __init__(self, code: str, text: str) -> None:
        """`text` says what was found and what was expected."""
        super().__init__(text)
        self.code = code


class PlanRefused(CodedRefusal):
    """A local plan that does not fit the bundle, or that this version cannot carry out."""


class PluginError(ProtoError):
    """A plug-in that cannot be found or used; install or correct its package."""


class ProgramRefused(ProtoError):
    """A program file with more than plain operators on tensors; do not load it."""


class StatementRefused(CodedRefusal):
    """A statement about a bundle that does not let a client run it."""


class WireError(ProtoError):
    """A message that cannot be read: truncated, unknown protocol version, or out of range."""
