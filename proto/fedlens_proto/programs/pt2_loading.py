"""Vetted `.pt2` programs, loaded by torch."""

import io
import typing
import warnings
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any

from torch._export.serde import schema, serialize
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

# torch's reader keeps what it reads in global variables, and refuses a second thread.
_TURN = Lock()


def load(vetted: bytes) -> ExportedProgram:
    """The program in a `.pt2` that has passed the vetting; for one that contradicts itself torch raises anything."""
    with _TURN, warnings.catch_warnings():
        # torch warns about its own deprecations while loading.
        warnings.simplefilter("ignore")
        program: ExportedProgram = load_pt2(io.BytesIO(vetted)).exported_programs["model"]
    return program


@cache
def _of_schema(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, globalns=schema.__dict__)


def _type_hints(cls: type, globalns: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    if globalns is schema.__dict__ and not others:
        return _of_schema(cls)
    return typing.get_type_hints(cls, globalns, **others)


# torch's reader asks for the hints of the same few classes at each value of a file: more than half of its time.
serialize.__dict__["typing"] = SimpleNamespace(**(vars(typing) | {"get_type_hints": _type_hints}))
