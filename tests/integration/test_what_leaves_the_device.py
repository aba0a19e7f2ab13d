"""`docs/what-leaves-the-device.md` against what clients really send, for every method."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedlens.compare.run import running
from fedlens.compare.run.direct_transport import DirectTransport
from fedlens_edge_client.emulation.partitions import Partition, PartitionName
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_export.models.classified import Classified
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2, update_pb2
from fedlens_proto.wire import LENGTH
from fedlens_server.methods import METHODS
from tests.integration import two_drivers
from tests.integration.federation import SIDE

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-the-device.md"
CLIENTS = 3
ROUNDS: dict[str, Any] = {"rounds": 3, "epochs": 1}
CONCAT = {"clusters": 2, "extractor_rounds": 1, "classifier_rounds": 1}
# By method and variant as the page names them: its objective, and what it needs in its settings.
CASES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("fedavg", ""): ("cross_entropy", {}),
    ("fedavg_last_fc", ""): ("cross_entropy", {}),
    ("fedns", ""): ("cross_entropy", {}),
    ("fedprox", ""): ("proximal", {"hyper": {"mu": 0.1}}),
    ("fedclassavg", ""): ("classifier_proximal", {}),
    ("fedclassavg", "weight"): ("classifier_proximal", {"options": {"weight": True}}),
    ("fedper", ""): ("cross_entropy", {}),
    ("fedrep", ""): ("cross_entropy", {}),
    ("local_only", ""): ("cross_entropy", {}),
    ("pfedsim", ""): ("cross_entropy", {}),
    ("fedconcat", ""): ("cross_entropy", {"options": CONCAT}),
    ("fedconcat", "inferred"): (
        "cross_entropy",
        {"options": {**CONCAT, "labels": "inferred", "random_images": 20}},
    ),
    ("fedconcat", "noisy"): ("cross_entropy", {"options": {**CONCAT, "labels": "noisy", "epsilon": 2.0}}),
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
    headers: list[update_pb2.UpdateHeader] = field(default_factory=list)
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
        roles = {
            "extractor": {t.name for t in described if t.role == manifest_pb2.TENSOR_ROLE_EXTRACTOR},
            "classifier": {t.name for t in described if t.role == manifest_pb2.TENSOR_ROLE_CLASSIFIER},
        }
        if held == roles["extractor"] | roles["classifier"] and roles["extractor"]:
            return "all"
        return next(role for role, names in roles.items() if held == names)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Bundles of one network by objective; with cross-entropy also the one that concatenates."""
    folder = tmp_path_factory.mktemp("export")
    classes = tuple(str(digit) for digit in range(10))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        network = Classified(nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 8)), nn.Linear(8, 10))

    def export(name: str, **training: Any) -> Path:
        given = Training(class_names=classes, batch=16, **training)
        return whole_model_bundle(folder / name, network, given, SIDE, name="small").folder

    return {
        "cross_entropy": [export("plain", onnx=True), export("concatenated", concatenated=2)],
        "proximal": [export("proximal", objective="proximal")],
        "classifier_proximal": [export("pulled", objective="classifier_proximal")],
    }


def test_the_page_speaks_of_every_method() -> None:
    assert {method for method, _ in rows()} == set(METHODS)
    assert rows().keys() == CASES.keys()


@pytest.mark.parametrize(("method", "variant"), CASES)
async def test_clients_send_what_the_page_says_and_nothing_else(
    tmp_path: Path,
    photos: Path,
    exported: dict[str, list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    variant: str,
) -> None:
    objective, more = CASES[method, variant]
    folders = exported[objective] if method == "fedconcat" else exported[objective][:1]
    recorder = Recorder({bundle.id: bundle for bundle in map(Bundle.open, folders)})
    send = DirectTransport.put_update

    async def recorded(
        self: DirectTransport, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        recorder.note(header, blob)
        return await send(self, task, round_number, header, blob)

    monkeypatch.setattr(DirectTransport, "put_update", recorded)
    fleet = two_drivers.fleet(
        tmp_path,
        photos,
        CLIENTS,
        partition=Partition(name=PartitionName.CAMERA_IID, seed=3, clients=CLIENTS, per_class=2, test_per_class=1),
        shares_downloads=True,
    )
    settings = {"method": method, "population": CLIENTS, **ROUNDS, **more}

    await running.run(fleet, json.dumps(settings), tuple(folders))

    phases = rows()[method, variant].values()
    assert [recorder.sent[i] for i in sorted(recorder.sent)] == [{sent} for sent in phases]
    assert all(fields <= ALWAYS for fields in recorder.plain)
