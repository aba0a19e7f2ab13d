"""Options, errors and output that several commands share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

TOKEN_VARIABLE = "FEDLENS_ENROLMENT_TOKEN"
# Every seeded random generator takes a seed of this size.
MAX_SEED = (1 << 32) - 1
INTERRUPTED = 128 + 2  # as a shell reports SIGINT

HOUR_S = 3600.0
HOUR_LASTS_HELP = "Seconds for which an hour lasts, to emulate days of phones that come and go; in a state made for it."
ENGINE_HELP = "Engine that runs a bundle's programs: torch (.pt2), or executorch (.pte), as on phones."

# As `engines.choice.EngineName`, without importing the engines.
EngineChoice = Literal["torch", "executorch"]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def reported(*errors: type[Exception], status: int = 1, interrupted: str = "") -> Iterator[None]:
    """Print one of these errors as a sentence, and end the command with `status`; after Ctrl-C print `interrupted`."""
    try:
        yield
    except errors as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        # A config's faults are a line each.
        typer.echo("\n".join(f"fedlens: {line}" for line in text.split("\n")), err=True)
        raise typer.Exit(status) from error
    except KeyboardInterrupt as error:
        if not interrupted:
            raise
        typer.echo(f"fedlens: {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from error


def print_json(values: Any) -> None:
    """Print JSON values."""
    typer.echo(json.dumps(values, indent=2))


def enrolment_token(token_file: Path | None) -> str | None:
    """The token in a file or, without a file, in the environment; None if neither holds one.

    Raises:
        StateError: The file cannot be read, or holds something else.
    """
    import os

    from fedlens_edge_client.errors import StateError
    from fedlens_proto.wire import is_token

    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{token_file} cannot be read as an enrolment token: {error}") from error
    if not is_token(token):
        raise StateError(f"{token_file} holds no enrolment token, which is one line of printable ASCII without spaces")
    return token


def named_value(entry: str, option: str, only_json: str | None = None) -> tuple[str, Any]:
    """The name and the value of `NAME=VALUE`, which is JSON, or else a text.

    Args:
        entry: As the user wrote it.
        option: Name of the option, for errors.
        only_json: What the value must be, in words, if texts are refused.

    Raises:
        FedlensError: There is no name or no `=`; or the value is no JSON where only JSON is allowed.
    """
    from fedlens.errors import FedlensError

    key, equals, text = entry.partition("=")
    if not equals or not key:
        raise FedlensError(f"{option}: found {entry!r}, must be a name, =, and a value")
    try:
        return key, json.loads(text)
    except ValueError:
        if only_json:
            raise FedlensError(f"{option} {key}: found {text!r}, must be {only_json}") from None
        return key, text
