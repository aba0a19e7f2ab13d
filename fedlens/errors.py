"""Errors of the commands, the demo and studies.

FedlensError
├── AdminError          a server refused an operator's request or could not be reached
├── BlobFileError       a file of tensors cannot be read or written
├── SourceUnavailable   a study's photos cannot be had
├── StudyError          a study cannot be used
├── TrackerMissing      a tool for figures by round is not installed
├── NotWritten          a file of figures cannot be written
├── FolderInUse         an output folder cannot be used
├── DemoFailed          the demo's task did not finish
├── EmbeddingFailed     photos' features could not be computed
└── PartDied            the demo's server ended before its time
"""


class FedlensError(Exception):
    """A command's request was not carried out; the text says what was wrong, what was found and what to do."""


class FolderInUse(FedlensError):
    """An output folder cannot be used; choose another one, or wait."""
