"""`docs/what-leaves-the-device.md` against what clients really send, for every method."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.run import running
from fedlens.compare.run.direct_transport import DirectTransport
from fedlens_edge_client.emulation.partitions import Partition, PartitionName
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2, update_pb2
from fedlens_proto.wire import LENGTH
from fedlens_server.methods import METHODS
from tests.integration import two_drivers
from tests.integration.conftest import NewBundle

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-the-device.md"
CLIENTS = 3
CONCAT = {"clusters": 2, "extractor_rounds": 1, "classifier_rounds": 1}
OBJECTIVES = {"fedprox": "proximal", "fedclassavg": "classifier_proximal"}
# What a method and variant, as the page names them, needs in its settings.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("fedprox", ""): {"hyper": {"mu": 0.1}},
    ("fedclassavg", "weight"): {"options": {"weight": True}},
    ("fedconcat", ""): {"options": CONCAT},
    ("fedconcat", "inferred"): {"options": {**CONCAT, "labels": "inferred", "random_images": 20}},
    ("fedconcat", "noisy"): {"options": {**CONCAT, "labels": "noisy", "epsilon": 2.0}},
}
ALWAYS = {"protocol", "phase", "bundle", "num_examples"}
ANSWERS = {"class_counts": "class counts", "label_distribution": "noisy shares"}
MOMENTS = {update_pb2.EVALUATION_MOMENT_START: "start", update_pb2.EVALUATION_MOMENT_END: "end"}
Sent = tuple[str, str, str]  # tensors, answers, evaluated


def rows() -> dict[tuple[str, str], dict[str, Sent]]:
    """The page's statements, by method and variant, then by phase."""
    found: dict[tuple[str, str], dict[str, Sent]] = {}
    pattern = r"^\| `(\w+)`(?:, `(\w+)`)? \| `([\w-]+)` \| (.+?) \| (.+?) \| (.+?) \|$"
    for method, variant, phase, *sent in re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault((method, variant), {})[phase] = (sent[0], sent[1], sent[2])
    return found


@dataclass
class Recorder:
    """Everything that clients send with their updates."""

    bundles: dict[bytes, Bundle]
    sent: dict[int, set[Sent]] = field(default_factory=dict)  # by index of the phase
    plain: list[set[str]] = field(default_factory=list)  # other fields of headers

    def note(self, raw: bytes, blob: bytes | Path | None) -> None:
        header = update_pb2.UpdateHeader.FromString(raw[LENGTH.size :])
        fields = {descriptor.name for descriptor, _ in header.ListFields()}
        answers = ", ".join(said for name, said in ANSWERS.items() if name in fields) or "-"
        evaluated = ", ".join(MOMENTS[sums.moment] for sums in header.evaluations) or "-"
        tensors = self.part(header.bundle, blob)
        self.sent.setdefault(header.phase, set()).add((tensors, answers, evaluated))
        self.plain.append(fields - ANSWERS.keys() - {"evaluations", "blob_sha256", "blob_size"})

    def part(self, bundle: bytes, blob: bytes | Path | None) -> str:
        """The part of the model's tensors that a blob holds."""
        if blob is None:
            return "none"
        held = set(Blob.from_bytes(blob) if isinstance(blob, bytes) else Blob.open(blob))
        described = self.bundles[bundle].manifest.tensors
        classifier = {t.name for t in described if t.role == manifest_pb2.TENSOR_ROLE_CLASSIFIER}
        extractor = {t.name for t in described if t.role == manifest_pb2.TENSOR_ROLE_EXTRACTOR}
        parts = {"classifier": classifier, "extractor": extractor, "all": extractor | classifier}
        return next(part for part, names in parts.items() if held == names)


def test_the_page_speaks_of_every_method() -> None:
    assert {method for method, _ in rows()} == set(METHODS)
    assert NEEDED.keys() <= rows().keys()


@pytest.mark.parametrize(("method", "variant"), rows())
async def test_clients_send_what_the_page_says_and_nothing_else(
    tmp_path: Path,
    photos: Path,
    exported: NewBundle,
    concatenating: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    variant: str,
) -> None:
    small = exported("small", OBJECTIVES.get(method, "cross_entropy"))
    folders = concatenating if method == "fedconcat" else [small]
    recorder = Recorder({bundle.id: bundle for bundle in map(Bundle.open, folders)})
    send = DirectTransport.put_update

    async def recorded(
        self: DirectTransport, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        recorder.note(header, blob)
        return await send(self, task, round_number, header, blob)

    monkeypatch.setattr(DirectTransport, "put_update", recorded)
    photos_of = Partition(name=PartitionName.CAMERA_IID, seed=3, clients=CLIENTS, per_class=2, test_per_class=1)
    fleet = two_drivers.fleet(tmp_path, photos, CLIENTS, partition=photos_of, shares_downloads=True)
    needed = NEEDED.get((method, variant), {})

    await running.run(fleet, two_drivers.settings(method, rounds=3, population=CLIENTS, **needed), tuple(folders))

    phases = rows()[method, variant].values()
    assert [recorder.sent[i] for i in sorted(recorder.sent)] == [{sent} for sent in phases]
    assert all(fields <= ALWAYS for fields in recorder.plain)
