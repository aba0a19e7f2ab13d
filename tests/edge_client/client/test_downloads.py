"""A client takes of a bundle only what it runs."""

import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens_edge_client import EdgeClient
from fedlens_edge_client.client.events import Downloaded, Event
from fedlens_edge_client.engines.choice import EngineName
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan
from tests.edge_client.linear import LinearEngine


class ForPhones(LinearEngine):
    """The fake engine, for the fake programs for phones."""

    @property
    def program_format(self) -> manifest_pb2.ProgramFormat:
        return manifest_pb2.PROGRAM_FORMAT_PTE


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


async def test_a_client_for_phones_fetches_their_programs_alone_and_no_frozen_tensors(
    with_phone_programs: tuple[Bundle, set[bytes]], client_of: Callable[..., EdgeClient], events: list[Event]
) -> None:
    bundle, _ = with_phone_programs
    manifest = bundle.manifest
    async with (
        FakeServer(bundle, fedavg_plan()) as server,
        client_of(server.url, engine=EngineName.EXECUTORCH, engine_factory=ForPhones) as client,
    ):
        await client.run()

    fetched = {event.sha256 for event in events if isinstance(event, Downloaded)}
    formats = {file.sha256: file.format for program in manifest.programs for file in program.files}
    assert {formats[digest] for digest in fetched & formats.keys()} == {manifest_pb2.PROGRAM_FORMAT_PTE}
    assert manifest.frozen not in fetched
    assert list(server.updates) == [1]


async def test_a_client_with_another_engine_than_before_enrols_again(
    with_phone_programs: tuple[Bundle, set[bytes]], client_of: Callable[..., EdgeClient]
) -> None:
    bundle, _ = with_phone_programs
    async with FakeServer(bundle, fedavg_plan(), rounds=3) as server:
        for engine, factory in ((EngineName.TORCH, LinearEngine), *[(EngineName.EXECUTORCH, ForPhones)] * 2):
            async with client_of(server.url, engine=engine, engine_factory=factory) as client:
                await client.run_once()

    assert server.calls["clients"] == 2


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
