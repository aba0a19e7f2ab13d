"""`docs/what-leaves-the-device.md` against what clients really send, for every method."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.run import running
from fedlens.compare.run.direct_transport import DirectTransport
from fedlens_edge_client.client.transport import Blobs
from fedlens_edge_client.emulation.partitions import Partition, PartitionName
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2, update_pb2
from fedlens_proto.wire import LENGTH
from fedlens_server.methods import METHODS
from fedlens_server.planning.local_plans import WEIGHTS
from tests.integration import two_drivers
from tests.integration.conftest import FittingBundles

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-the-device.md"
CLIENTS = 3
CONCAT = {"clusters": 2, "extractor_rounds": 1, "classifier_rounds": 1}
# What a method and variant, as the page names them, needs in its settings.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("fedprox", ""): {"hyper": {"mu": 0.1}},
    ("fedclassavg", "weight"): {"options": {"weight": True}},
    ("fedap", ""): {"options": {"warm_up": 0.5}},
    ("fedap", "recomputed"): {"options": {"warm_up": 0.5, "statistics": "recomputed"}},
    ("feddyn", ""): {"hyper": {"alpha": 0.1}},
    ("feddyn", "client"): {"hyper": {"alpha": 0.1}, "options": {"dual": "client"}},
    ("fedfomo", ""): {"options": {"share_models": True, "others": 2}},
    ("fedsoft", ""): {"options": {"clusters": 2}},
    ("fesem", ""): {"options": {"clusters": 2}},
    ("ifca", ""): {"options": {"clusters": 2}},
    ("kt_pfl", "weight"): {"options": {"weight": True}},
    ("fedconcat", ""): {"options": CONCAT},
    ("fedconcat", "inferred"): {"options": {**CONCAT, "labels": "inferred", "random_images": 20}},
    ("fedconcat", "bias"): {"options": {**CONCAT, "labels": "bias"}},
    ("fedconcat", "noisy"): {"options": {**CONCAT, "labels": "noisy", "epsilon": 2.0}},
}
SHARED_STATE = {
    **{("fedfomo", ""): "state/model", ("fedsoft", ""): "state/model", ("fedap", ""): "state/norms"},
    **{("moon", ""): "state/previous", ("feddyn", "client"): "state/dual"},
}
ALWAYS = {"protocol", "phase", "bundle", "num_examples"}
ANSWERS = {"class_counts": "class counts", "label_distribution": "noisy shares"}
# The page's words by label.
EVALUATED = {
    **{"start": "start", "trained": "end", "fine_tuned": "fine-tuned"},
    **{name: name for name in ("nearest", "personal")},
}
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
    consents: set[str] = field(default_factory=set)  # that the server asks clients' owners for

    def note(self, raw: bytes, blobs: Blobs) -> None:
        header = update_pb2.UpdateHeader.FromString(raw[LENGTH.size :])
        fields = {descriptor.name for descriptor, _ in header.ListFields()}
        answers = ", ".join(said for name, said in ANSWERS.items() if name in fields) or "-"
        evaluated = ", ".join(EVALUATED[sums.label] for sums in header.evaluations) or "-"
        named = zip([upload.name for upload in header.uploads], blobs, strict=True)
        parts = [self.part(header.bundle, blob) if name == WEIGHTS else f"table `{name}`" for name, blob in named]
        tensors = ", ".join(parts) or "none"
        self.sent.setdefault(header.phase, set()).add((tensors, answers, evaluated))
        self.plain.append(fields - ANSWERS.keys() - {"evaluations", "uploads"})

    def part(self, bundle: bytes, blob: bytes | Path) -> str:
        """The part of the model's tensors that a blob holds."""
        held = set(Blob.from_bytes(blob) if isinstance(blob, bytes) else Blob.open(blob))
        described = self.bundles[bundle].manifest.tensors
        classifier = {t.name for t in described if t.role == manifest_pb2.TENSOR_ROLE_CLASSIFIER}
        extractor = {t.name for t in described if t.role == manifest_pb2.TENSOR_ROLE_EXTRACTOR}
        statistics = {t.name for t in described if t.kind == manifest_pb2.TENSOR_KIND_BUFFER}
        norm = {t.name for t in described if t.kind == manifest_pb2.TENSOR_KIND_NORM}
        every = extractor | classifier
        parts = {
            **{"classifier": classifier, "extractor": extractor, "all": every},
            **{"all but BatchNorm": every - statistics - norm, "BatchNorm's statistics": statistics},
        }
        return next(part for part, names in parts.items() if held == names)


def test_the_page_speaks_of_every_method() -> None:
    assert {method for method, _ in rows()} == set(METHODS)
    assert NEEDED.keys() <= rows().keys()


# One with weights alone, and one with a table too; the rest is slow.
_QUICK = [("fedavg", ""), ("fedproto", "")]


@pytest.mark.parametrize(
    ("method", "variant"),
    [pytest.param(*row, marks=() if row in _QUICK else pytest.mark.slow) for row in rows()],
)
async def test_clients_send_what_the_page_says_and_nothing_else(
    tmp_path: Path,
    photos: Path,
    concatenating: list[Path],
    fitting: FittingBundles,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    variant: str,
) -> None:
    needed = NEEDED.get((method, variant), {})
    folders = concatenating if method == "fedconcat" else fitting(method, needed.get("options", {}))
    recorder = Recorder({bundle.id: bundle for bundle in map(Bundle.open, folders)})
    send = DirectTransport.put_update

    async def recorded(
        self: DirectTransport, task: int, round_number: int, header: bytes, blobs: Blobs
    ) -> update_pb2.Receipt:
        recorder.note(header, blobs)
        recorder.consents |= self._federation.tasks[task].consents
        return await send(self, task, round_number, header, blobs)

    monkeypatch.setattr(DirectTransport, "put_update", recorded)
    photos_of = Partition(name=PartitionName.CAMERA_IID, seed=3, clients=CLIENTS, per_class=2, test_per_class=1)
    fleet = two_drivers.fleet(tmp_path, photos, CLIENTS, partition=photos_of, shares_downloads=True)

    await running.run(fleet, two_drivers.settings(method, rounds=3, population=CLIENTS, **needed), tuple(folders))

    phases = rows()[method, variant].values()
    assert [recorder.sent[i] for i in sorted(recorder.sent)] == [{sent} for sent in phases]
    assert all(fields <= ALWAYS for fields in recorder.plain)
    tables = set(re.findall(r"table `(\w+)`", str(recorder.sent)))
    assert recorder.consents == tables | {SHARED_STATE.get((method, variant), "")} - {""}
