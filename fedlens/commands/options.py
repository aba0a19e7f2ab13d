"""What several commands' options have in common."""

from enum import StrEnum
from pathlib import Path

TOKEN_VARIABLE = "FEDLENS_ENROLMENT_TOKEN"
# Every generator that is seeded takes so much.
MAX_SEED = (1 << 32) - 1

ENGINE_HELP = "What runs a bundle's programs: torch (.pt2), or executorch (.pte), as on phones."


class EngineChoice(StrEnum):
    """The engines' names, without importing what makes them."""

    TORCH = "torch"
    EXECUTORCH = "executorch"


def enrolment_token(token_file: Path | None) -> str | None:
    """The token in a file or, without one, in the environment; None if there is none.

    Raises:
        StateError: The file cannot be read, or is empty.
    """
    import os

    from fedlens_edge_client.errors import StateError

    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{token_file} cannot be read as an enrolment token: {error}") from error
    if not token:
        raise StateError(f"{token_file} is empty; it must hold an enrolment token")
    return token
