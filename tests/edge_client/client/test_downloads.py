"""A client takes of a bundle only what it runs."""

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.client.events import Downloaded
from fedlens_edge_client.engines.choice import EngineName
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan
from tests.edge_client.federation import Federation
from tests.edge_client.linear import LinearEngine


class ForPhones(LinearEngine):
    """The fake engine, for the fake programs for phones."""

    @property
    def program_format(self) -> manifest_pb2.ProgramFormat:
        return manifest_pb2.PROGRAM_FORMAT_PTE


@pytest.fixture
def with_phone_programs(bundle: Bundle, tmp_path: Path) -> Bundle:
    """The bundle with each program in a phone's format too, and one program more."""
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    manifest = manifest_pb2.Manifest.FromString(bundle.raw)

    def add(content: bytes, files: object, kind: manifest_pb2.ProgramFormat) -> None:
        digest = sha256(content).digest()
        (tmp_path / "bundle" / "parts" / digest.hex()).write_bytes(content)
        files.add(format=kind, sha256=digest)  # type: ignore[attr-defined]
        manifest.parts.add(sha256=digest, size=len(content))

    for program in manifest.programs:
        add(f"{program.name} for a phone".encode(), program.files, manifest_pb2.PROGRAM_FORMAT_PTE)
    other = manifest.programs.add()
    other.CopyFrom(next(program for program in manifest.programs if program.name == "step"))
    other.name = "another-step"
    del other.files[:]
    add(b"no plan runs this", other.files, manifest_pb2.PROGRAM_FORMAT_PT2)
    manifest.parts.sort(key=lambda part: part.sha256)
    (tmp_path / "bundle" / "manifest.pb").write_bytes(manifest.SerializeToString(deterministic=True))
    return Bundle.open(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"engine": EngineName.EXECUTORCH, "engine_factory": ForPhones}, manifest_pb2.PROGRAM_FORMAT_PTE),
        ({}, manifest_pb2.PROGRAM_FORMAT_PT2),
    ],
)
async def test_a_client_fetches_the_programs_of_its_own_format_for_the_plan_alone(
    with_phone_programs: Bundle, federation: Federation, arguments: dict[str, Any], kind: manifest_pb2.ProgramFormat
) -> None:
    manifest = with_phone_programs.manifest
    server = await federation.run(bundle=with_phone_programs, **arguments)

    fetched = {event.sha256 for event in federation.events.of(Downloaded)}
    files = {(file.format, program.name): file.sha256 for program in manifest.programs for file in program.files}
    wanted = {(kind, name) for name in ("embed", "step", "predict")}
    assert len(files) == 7
    assert {key for key, digest in files.items() if digest in fetched} == wanted
    # A phone's programs hold the frozen tensors themselves.
    assert (manifest.frozen in fetched) == (kind == manifest_pb2.PROGRAM_FORMAT_PT2)
    assert list(server.updates) == [1]


async def test_a_client_with_another_engine_than_before_enrols_again(
    with_phone_programs: Bundle, federation: Federation
) -> None:
    async with FakeServer(with_phone_programs, fedavg_plan(), rounds=3) as server:
        for engine, factory in ((EngineName.TORCH, LinearEngine), *[(EngineName.EXECUTORCH, ForPhones)] * 2):
            await federation.one_round(server, engine=engine, engine_factory=factory)

    assert server.calls["clients"] == 2
