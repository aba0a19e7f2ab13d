"""Tables of photos' owners: CSV with columns `file`, `client` or `person`, and optionally `camera`."""

import csv
import os.path
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from fedlens_edge_client.emulation.partitions.listing import ByClass, Listing, PoolPhoto, PoolUnusable
from fedlens_proto import photos

NAMES = ("clients.csv", "people.csv")
_FILE, _OWNER, _CAMERA = "file", ("client", "person"), "camera"


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    owner: str
    camera: str


def table_of(root: Path) -> Path | None:
    """The table at `root`: that file, or a file of one of the `NAMES` in that folder."""
    if root.suffix.lower() == ".csv" and root.is_file():
        return root
    return next((root / name for name in NAMES if (root / name).is_file()), None)


def read_table(table: Path, listing: Listing) -> ByClass:
    """The photos in a table; the name of a file's folder is its class.

    Raises:
        PoolUnusable: The table cannot be read, or a row is wrong; rows are numbered as in a spreadsheet.
    """
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = sorted(_rows(table, csv.DictReader(file, strict=True)), key=lambda row: row.path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PoolUnusable(f"{table} cannot be read as a table: {error}; save it as CSV in UTF-8") from error
    if not rows:
        raise PoolUnusable(f"{table} has no rows; give each photo one, with its file and its client")
    found: dict[str, list[PoolPhoto]] = defaultdict(list)
    for row in rows:
        members = found[row.path.parent.name]
        if reason := photos.skipped_for(row.path):
            listing.skip(reason, row.path)
        else:
            members.extend(listing.photo(row.path, row.owner, row.camera))
    return {name: tuple(members) for name, members in found.items()}


def _rows(table: Path, reader: "csv.DictReader[str]") -> Iterator[_Row]:
    columns = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = columns
    owner_column = next((name for name in _OWNER if name in columns), None)
    if _FILE not in columns or owner_column is None:
        missing = "column `file`" if _FILE not in columns else "column `client` or `person`"
        raise PoolUnusable(
            f"{table} has no {missing}, with commas between; its first line is {','.join(columns)[:80]!r}"
        )
    seen: dict[Path, int] = {}
    for values in reader:
        number = reader.line_num
        file, owner, camera = ((values.get(key) or "").strip() for key in (_FILE, owner_column, _CAMERA))
        path = table.parent / _relative(table, number, file)
        if path in seen:
            raise PoolUnusable(f"{table}, row {number}: {file!r} is in row {seen[path]} already; leave one of them")
        if not path.is_file():
            raise PoolUnusable(f"{table}, row {number}: there is no file {path}; put it there, or remove the row")
        if not owner:
            raise PoolUnusable(f"{table}, row {number}: column `{owner_column}` is empty; say whose photo {file!r} is")
        seen[path] = number
        yield _Row(path, owner, camera)


def _relative(table: Path, number: int, file: str) -> PurePath:
    path = PurePath(os.path.normpath(file))
    if not file or path.is_absolute() or ".." in path.parts:
        raise PoolUnusable(
            f"{table}, row {number}: file {file!r} must be a path inside {table.parent}, such as photos/cat/1.jpg"
        )
    if len(path.parts) < 2:
        raise PoolUnusable(
            f"{table}, row {number}: {file!r} is in no folder, whose name would be its class; put it into one"
        )
    return path
