"""`make vectors`: write every file of the test vectors anew; the same version gives the same bytes each time."""

import shutil
from pathlib import Path

from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_proto.manifest import Bundle
from tests.vectors import blobs, draws, links, messages, pictures, plans, programs, statements
from tests.vectors.forms import Files

FOLDER = Path(__file__).parent
_DATA = ("blobs", "bundle", "messages", "photos", "plan", "statements", "updates")


def exact() -> Files:
    """The files in which every byte follows from the rules, on any machine."""
    rooms = (blobs, draws, links, messages, pictures, plans, statements)
    return {name: content for room in rooms for name, content in room.files().items()}


def written() -> Files:
    """The files that are there now, but for code and the page that describes them."""
    paths = [*FOLDER.glob("*.json"), *(path for name in _DATA for path in (FOLDER / name).rglob("*") if path.is_file())]
    return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in sorted(paths)}


def committed_bundle() -> Bundle:
    """The bundle among the vectors."""
    return Bundle.open(FOLDER / "bundle")


def _write(files: Files) -> None:
    for name, content in files.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def main() -> None:
    """Write everything, and say how much it is."""
    for name in _DATA:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    _write(exact())
    _write(programs.bundle_files())
    bundle = committed_bundle()
    _write(programs.files(bundle, TorchEngine(bundle)))
    found = written()
    print(f"{len(found)} files, {sum(map(len, found.values())) / 1000:.0f} kB, in {FOLDER.name}/")


if __name__ == "__main__":
    main()
