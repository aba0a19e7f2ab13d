"""Settings files, and the errors in them as sentences, made of pydantic's errors and the descriptions of fields."""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


def load_toml(path: Path, model: type[M], error: type[Exception]) -> M:
    """Read a file of settings; `error` is raised, with a text, if it cannot be read or has a wrong key."""
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as unreadable:
        raise error(f"{path.name}: cannot be read as TOML: {unreadable}") from unreadable
    except ValidationError as wrong:
        raise error(f"{path.name}: {explain(wrong, model)}") from wrong


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first error, such as `fault[2].round: found 0, must be an integer from 1`.

    A field's description says what is allowed.
    """
    first = error.errors(include_url=False)[0]
    key, field, known = "", None, model
    parts = iter(part for part in first["loc"] if part != "[key]")
    for part in parts:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
        if isinstance(part, int):
            continue
        owner, field = known, known.model_fields.get(part)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        known = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), known)
        if field is not None and get_origin(field.annotation) is dict and (entry := next(parts, None)) is not None:
            key += f".{entry}"
        if first["type"] == "extra_forbidden" and field is None:
            return f"{key.lstrip('.')}: unknown key; {nearest(part, owner.model_fields)}"
    key = key.lstrip(".")
    if first["type"] == "value_error":
        text = str(first.get("ctx", {})["error"])
    else:
        found = "found nothing" if first["type"] == "missing" else f"found {first['input']!r}"
        text = f"{found}, must be {(field.description if field else None) or 'a table'}"
    return f"{key}: {text}" if key else text


def nearest(name: str, known: Iterable[str]) -> str:
    """A known name close to a wrong one, or all known names."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
