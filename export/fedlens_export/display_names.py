"""The names of the classes in the languages of an app's users.

A file of them is JSON: `{"de": {"cat": "Katze", "dog": "Hund"}}`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fedlens_export.errors import NotExportable
from fedlens_proto.manifest import check_display_names
from fedlens_proto.v1 import manifest_pb2 as pb

_FORM = TypeAdapter(Annotated[dict[str, dict[str, str]], Field(min_length=1)])


def read(file: Path) -> dict[str, dict[str, str]]:
    """The name of each class by language, as the file has them.

    Raises:
        NotExportable: The file cannot be read, is not JSON, or has another form.
    """
    try:
        return _FORM.validate_json(file.read_bytes())
    except OSError as error:
        raise NotExportable(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"] == "json_invalid":
            raise NotExportable(f"{file} is not JSON: {fault.get('ctx', {})['error']}") from error
        raise NotExportable(
            f"""{file} must have the form {{"de": {{"cat": "Katze"}}}}, a name of each class by language"""
        ) from error


def check(display_names: Mapping[str, Mapping[str, str]], class_names: Sequence[str]) -> None:
    """Check that every language names every class, and nothing else.

    Raises:
        NotExportable: A class is missing, or there is none of that name.
        ManifestError: A language or a name breaks a manifest's rules.
    """
    for language, names in display_names.items():
        if missing := [name for name in class_names if name not in names]:
            raise NotExportable(f"display names in {language!r}: class {missing[0]!r} is missing")
        if unknown := [name for name in names if name not in class_names]:
            raise NotExportable(
                f"display names in {language!r}: found {unknown[0]!r}, must be one of {', '.join(class_names)}"
            )
    check_display_names(pb.Manifest(class_names=class_names, display_names=messages(display_names, class_names)))


def messages(display_names: Mapping[str, Mapping[str, str]], class_names: Sequence[str]) -> list[pb.DisplayNames]:
    """Checked display names as a manifest has them."""
    return [
        pb.DisplayNames(language=language, names=[names[name] for name in class_names])
        for language, names in sorted(display_names.items())
    ]
