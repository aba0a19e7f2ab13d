"""A client takes of a bundle only what it runs."""

import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens_edge_client import EdgeClient
from fedlens_edge_client.events import Downloaded, Event
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan


@pytest.fixture
def with_phone_programs(bundle: Bundle, tmp_path: Path) -> tuple[Bundle, set[bytes]]:
    """The bundle with each program in a phone's format too, and one program more; and the digests of these parts."""
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    manifest = manifest_pb2.Manifest.FromString(bundle.raw)
    added: set[bytes] = set()

    def add(content: bytes, files: object, kind: manifest_pb2.ProgramFormat) -> None:
        digest = sha256(content).digest()
        (tmp_path / "bundle" / "parts" / digest.hex()).write_bytes(content)
        files.add(format=kind, sha256=digest)  # type: ignore[attr-defined]
        manifest.parts.add(sha256=digest, size=len(content))
        added.add(digest)

    for program in manifest.programs:
        add(f"{program.name} for a phone".encode(), program.files, manifest_pb2.PROGRAM_FORMAT_PTE)
    other = manifest.programs.add()
    other.CopyFrom(next(program for program in manifest.programs if program.name == "step"))
    other.name = "another-step"
    del other.files[:]
    add(b"no stage runs this", other.files, manifest_pb2.PROGRAM_FORMAT_PT2)
    parts = sorted(manifest.parts, key=lambda part: part.sha256)
    del manifest.parts[:]
    manifest.parts.extend(parts)
    (tmp_path / "bundle" / "manifest.pb").write_bytes(manifest.SerializeToString(deterministic=True))
    return Bundle.open(tmp_path / "bundle"), added


async def test_programs_of_other_formats_and_other_stages_stay_where_they_are(
    with_phone_programs: tuple[Bundle, set[bytes]], client_of: Callable[..., EdgeClient], events: list[Event]
) -> None:
    bundle, added = with_phone_programs
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        await client.run()

    fetched = {event.sha256 for event in events if isinstance(event, Downloaded)}
    assert len(added) == 4
    assert {part.sha256 for part in bundle.manifest.parts} - fetched >= added
    assert list(server.updates) == [1]
