"""Where a server's state is: all in a folder, or its database and its blobs elsewhere.

Neither address holds a secret: the environment, a file or the machine's own role gives credentials.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from fedlens_server.store.dialects import DATABASE_FILE, Database, Postgres, Sqlite

DATABASE_EXAMPLE = "postgresql://fedlens@db.example.org/fedlens"
BUCKET_EXAMPLE = "s3://bucket/prefix"
MAX_CACHE_BYTES = 16 << 30
# What AWS allows a bucket's name to be; a prefix of words, so that keys need no escaping.
_BUCKET = re.compile(r"s3://(?P<name>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9._-]+)*)/?")


@dataclass(frozen=True)
class Bucket:
    """A place for objects in a service that speaks S3."""

    name: str
    prefix: str  # of all keys, without a slash at either end; empty: none

    @classmethod
    def parse(cls, text: object) -> Self:
        """The bucket that a text names.

        Raises:
            ValueError: It names none, or holds credentials; the error does not repeat the text.
        """
        found = _BUCKET.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            told = f"found {text!r}"
            if isinstance(text, str) and ("@" in text or "?" in text):
                told = "found credentials in it; leave them out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise ValueError(f"{told}; must be such as {BUCKET_EXAMPLE!r}")
        return cls(found["name"], found["prefix"].strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def __truediv__(self, name: str) -> "Bucket":
        return Bucket(self.name, f"{self.prefix}/{name}".strip("/"))


def database_url(text: object) -> URL:
    """The database that a text names.

    Raises:
        ValueError: It names none, or holds a password; the error does not repeat the text.
    """
    if not isinstance(text, str):
        raise ValueError(f"found {text!r}, must be such as {DATABASE_EXAMPLE!r}")
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError(f"found something else, must be such as {DATABASE_EXAMPLE!r}") from None
    if url.password is not None or "password" in url.query:
        raise ValueError(
            "found a password in it; leave it out, and set PGPASSWORD or PGPASSFILE; "
            f"must be such as {DATABASE_EXAMPLE!r}"
        )
    if url.drivername not in ("postgresql", "postgres") or not url.database:
        raise ValueError(f"found {url.render_as_string()!r}, must be such as {DATABASE_EXAMPLE!r}")
    return url


@dataclass(frozen=True, kw_only=True)
class StateAddress:
    """The address of a server's state."""

    folder: Path  # holds what is not elsewhere, what is on its way, and copies of blobs that are elsewhere
    database: URL | None = None  # of PostgreSQL; None: a file in the folder
    bucket: Bucket | None = None  # of blobs that do not fit a row; None: files in the folder
    cache_bytes: int = MAX_CACHE_BYTES  # of the folder, for copies of these

    @property
    def is_here(self) -> bool:
        """True if all of it is in the folder."""
        return self.database is None and self.bucket is None

    @property
    def is_beside_another(self) -> bool:
        """True if the database of another state is in the folder, such as of one that was moved from there."""
        return self.database is not None and (self.folder / DATABASE_FILE).exists()

    @classmethod
    def of(cls, found: "Path | StateAddress") -> "StateAddress":
        """The address of a state that is all in a folder, or the given one."""
        return found if isinstance(found, StateAddress) else cls(folder=found)

    def open_database(self) -> Database:
        """The database; nothing is connected yet."""
        return Sqlite(self.folder) if self.database is None else Postgres(self.database)
