"""What clients that lie cost, by method and attack: accuracy without attack, without rules, and with the defaults.

    python -m bench.attacks [METHOD ...] [--folder DIR] [--seeds 1 2 3] [--bad 4] [--clients 20]

Federations in this process, of the product's clients, methods and round engine: scikit-learn's digits, a head on a
frozen EfficientNet-Lite0 (for FedBN, f-FedAP and FedConcat a whole LeNet-5), 20 clients with Dirichlet(0.5) classes,
all in each of 30 rounds, of which the first 4 lie in each. Each run adds its line to docs/results/attacks.csv, and the
same command goes on from there. It prints the table of docs/robust-rules.md.

    attack     what a bad client uploads instead of its update
    absent     that it had no photos: no attack, but the others lack what it knows
    huge       3e38 for every weight or, of a client that uploads none, for every value of its tables
    flip       what it was sent minus its change
    noise      what it was sent plus Gaussian noise, 10 times as long as its change
    photos     its update, with the claim of 10^6 photos
    labels     what it trained on photos whose labels are counted from the other end
"""

import argparse
import asyncio
import csv
import json
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlens.compare.bundles import export
from fedlens.compare.photos import study_photos
from fedlens.compare.plan import FEATURES, RunPlan, plan
from fedlens.compare.results import run_values
from fedlens.compare.run import running
from fedlens.compare.run.direct_transport import DirectTransport
from fedlens.compare.study import parse_study
from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.storage.album import Album, AlbumSnapshot
from fedlens_proto import blob, wire
from fedlens_proto.v1 import update_pb2
from fedlens_server.planning.local_plans import WEIGHTS

KEPT = Path(__file__).parent.parent / "docs" / "results" / "attacks.csv"
CLAIMED = 10**6
HUGE = 3e38
ATTACKS = ("absent", "huge", "flip", "noise", "photos", "labels")
DEFAULTS = {"exclude": True, "clip": True, "cap": True}
OFF = dict.fromkeys(DEFAULTS, False)
STUDY = """
name = "attacks"
clients = {clients}
rounds = 30
epochs = 2
seeds = {seeds}
evaluate_every = 30
personal_evaluation = true

[photos]
source = "digits"

[partition]
name = "dirichlet"
beta = 0.5

[model]
names = ["efficientnet_lite0"]
input_size = 64
batch = 16

[hyper]
lr_extractor = 0.1
lr_classifier = 0.1
momentum = 0.0
"""
# The heads of methods that tell an extractor from a classifier, and of the others. At the rate of the linear head, a
# hidden one learns less or, in FedGen, nothing.
HIDDEN = 'head = "hidden"\nhyper = { lr_extractor = 0.005, lr_classifier = 0.005 }'
LINEAR = 'head = "linear"'
CONCATENATED = """\
models = ["lenet5"]
concatenated = 2
rounds = 30
options = { clusters = 2, extractor_rounds = 9, classifier_rounds = 20 }"""
METHODS = {
    "fedavg": LINEAR,
    "fedns": LINEAR,
    "fedavg_last_fc": LINEAR,
    "fedavgm": LINEAR,
    "fedprox": f"{LINEAR}\nhyper = {{ mu = 0.01 }}",
    "fedper": HIDDEN,
    "fedrep": HIDDEN,
    "moon": HIDDEN,
    "fedrs": LINEAR,
    "fedlc": LINEAR,
    "ditto": LINEAR,
    "fedclassavg": HIDDEN,
    "per_fedavg": f'{LINEAR}\nobjective = "meta_fo"',
    "feddyn": f"{LINEAR}\nhyper = {{ alpha = 0.01 }}",
    "scaffold": LINEAR,
    "fedgen": f"{HIDDEN}\noptions = {{ iterations = 5, rows = 32 }}",
    "ifca": f"{LINEAR}\noptions = {{ clusters = 2 }}",
    "fesem": f"{LINEAR}\noptions = {{ clusters = 2 }}",
    "fedsoft": f"{LINEAR}\noptions = {{ clusters = 2 }}",
    "pfedsim": f"{HIDDEN}\noptions = {{ warm_up = 0.5 }}",
    "fedproto": HIDDEN,
    "fedfomo": f"{LINEAR}\noptions = {{ share_models = true, others = 5, validation_percent = 20 }}",
    "fedbn": 'models = ["lenet5_bn"]',
    "fedconcat": CONCATENATED,
    "fedap": 'models = ["lenet5_bn"]\noptions = { warm_up = 0.5, model_momentum = 0.5 }',
}
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class MirroredAlbum:
    """An album with the labels counted from the other end of the classes."""

    album: Album
    classes: tuple[str, ...]

    def photos(self, round_number: int) -> AlbumSnapshot:
        """The photos with wrong labels; those for tests keep theirs."""
        found = self.album.photos(round_number)
        mirrored = dict(zip(self.classes, reversed(self.classes), strict=True))
        wrong = tuple(each if each.is_test else replace(each, label=mirrored[each.label]) for each in found.photos)
        return replace(found, photos=wrong)


@dataclass(frozen=True, kw_only=True)
class MislabellingFleet(FleetConfig):
    """A fleet whose first clients have wrong labels."""

    bad: int

    def album(self, index: int) -> Album:
        """As the fleet's, perhaps mirrored."""
        album = super().album(index)
        return MirroredAlbum(album, self.pool.class_names) if 0 <= index < self.bad else album


class LyingTransport(TransportWrapper):
    """The `Transport` of a client that changes its updates."""

    def __init__(self, inner: DirectTransport, attack: str, index: int) -> None:
        """`index` is that of the client, which draws other noise than the others."""
        super().__init__(inner)
        self._server, self._attack, self._index = inner, attack, index

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """As the inner transport, after the attack."""
        message = wire.decode(update_pb2.UpdateHeader, header[wire.LENGTH.size :])
        sent = list(blobs)
        if self._attack == "photos" and message.num_examples:
            factor = CLAIMED // message.num_examples
            message.num_examples *= factor
            message.class_counts[:] = [factor * count for count in message.class_counts]
        if self._attack == "absent":
            message.num_examples = 0
            message.class_counts[:] = [0] * len(message.class_counts)
        has_weights = any(upload.name == WEIGHTS for upload in message.uploads)
        for i, upload in enumerate(message.uploads):
            is_meant = upload.name == WEIGHTS or not has_weights
            if self._attack in ("huge", "flip", "noise") and is_meant and message.num_examples:
                uploaded = dict(blob.Blob.from_bytes(_raw(sent[i])))
                sent[i] = changed = blob.encode(self._changed(task, round_number, uploaded))
                upload.sha256 = sha256(changed).digest()
        await self._inner.put_update(task, round_number, wire.frame_update(message), sent)
        own = b"".join([header, *map(_raw, blobs)])
        return update_pb2.Receipt(body_sha256=sha256(own).digest())

    def _changed(self, task: int, round_number: int, trained: dict[str, Any]) -> dict[str, Any]:
        floats = {name: value for name, value in trained.items() if value.dtype.kind == "f"}
        if self._attack == "huge":
            return trained | {name: np.full_like(value, HUGE) for name, value in floats.items()}
        before = self._before(task, floats)
        changes = {name: value - before[name] for name, value in floats.items()}
        if self._attack == "flip":
            return trained | {name: before[name] - change for name, change in changes.items()}
        draws = np.random.default_rng([self._index, round_number])
        noise = {name: draws.standard_normal(value.shape, np.float32) for name, value in floats.items()}
        factor = np.float32(10 * _norm(changes) / _norm(noise))
        return trained | {name: before[name] + factor * noise[name] for name in floats}

    def _before(self, task: int, floats: dict[str, Floats]) -> dict[str, Floats]:
        """What the weights started from: of all downloads that have them, the nearest one."""
        federation = self._server._federation  # what a client downloads is in its cache by digest alone
        current = federation.tasks[task].round
        assert current is not None
        sets = [federation.store.tensors(each.sha256) for each in current.members[self._server._id].sets]
        fitting = [{name: each[name] for name in floats} for each in sets if all(name in each for name in floats)]
        initial = [{name: np.zeros_like(value) for name, value in floats.items()}]
        return min(fitting or initial, key=lambda each: _norm({name: floats[name] - each[name] for name in floats}))


def _raw(sent: bytes | Path) -> bytes:
    return sent.read_bytes() if isinstance(sent, Path) else sent


def _norm(tensors: dict[str, Floats]) -> float:
    return float(np.sqrt(sum(np.sum(each.astype(np.float64) ** 2) for each in tensors.values())))


def lying(attack: str, bad: int) -> Callable[..., Transport]:
    """Makes the transports of a run."""

    def made(inner: Transport, faults: FaultPlan, index: int, sleep: running.Sleep) -> Transport:
        assert isinstance(inner, DirectTransport)
        return LyingTransport(inner, attack, index) if index < bad else inner

    return made


def accuracy(folder: Path, run: RunPlan, attack: str, rules: dict[str, bool], bad: int) -> float | None:
    """The global model's accuracy, or without one the mean one of honest clients; None: the task failed."""
    with tempfile.TemporaryDirectory(dir=folder) as state:
        given = vars(run.fleet) | {"state": Path(state), "evaluator_token": "evaluator"}
        fleet = MislabellingFleet(**given, bad=bad) if attack == "labels" else FleetConfig(**given)
        settings = json.dumps(json.loads(run.settings) | rules)
        bundles = tuple(folder / bundle.folder for bundle in run.bundles)
        try:
            federation = running.run(fleet, settings, bundles, features=folder / FEATURES, disturbed=lying(attack, bad))
            made = asyncio.run(federation)
        except running.RunFailed:
            return None
    values = run_values(run, made, {}, {})
    if tested := [each["global"] for each in values["rounds"] if each["global"]]:
        return float(tested[-1]["correct"] / tested[-1]["count"])
    liars = {client_name(index) for index in range(bad)}
    honest = [each for each in values["rounds"][-1]["members"] if each["client"] not in liars]
    found = [each["before"] for each in honest if each.get("before") and each["before"]["count"]]
    return fmean(each["correct"] / each["count"] for each in found)


class Run(NamedTuple):
    """One federation of a setting."""

    method: str
    attack: str  # empty: none
    rules: bool
    seed: int


class Results:
    """Accuracies that earlier calls found, of one setting; None: the task failed."""

    def __init__(self, bad: int, clients: int, file: Path = KEPT) -> None:
        """Of `bad` among `clients`; an empty file, or none, holds no results."""
        self._file, self._setting = file, [str(bad), str(clients)]
        self.found: dict[Run, float | None] = {}
        with suppress(FileNotFoundError), file.open(newline="", encoding="utf-8") as lines:
            for *setting, method, attack, rules, seed, found in islice(csv.reader(lines), 1, None):
                if setting == self._setting:
                    self.found[Run(method, attack, rules == "yes", int(seed))] = float(found) if found else None

    def add(self, run: Run, found: float | None) -> None:
        """Keep a result."""
        self.found[run] = found
        line = [*self._setting, run.method, run.attack, "yes" if run.rules else "no", run.seed]
        with self._file.open("a", newline="", encoding="utf-8") as lines:
            csv.writer(lines, lineterminator="\n").writerow([*line, "" if found is None else round(found, 6)])


def cases() -> list[tuple[str, dict[str, bool]]]:
    """Attacks and rules, the empty attack first."""
    return [("", OFF), ("", DEFAULTS)] + [(attack, rules) for attack in ATTACKS for rules in (OFF, DEFAULTS)]


def cell(values: Sequence[float | None]) -> str:
    """Percent, mean over seeds; how many tasks failed."""
    if not values:
        return "-"
    known = [value for value in values if value is not None]
    failed = len(values) - len(known)
    mean = f"{100 * fmean(known):.1f}" if known else ""
    return " ".join(filter(None, (mean, f"({failed} of {len(values)} failed)" if failed and known else ""))) or "fails"


def table(results: Results, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """The kept results as Markdown: for each attack without and with rules."""
    heads = ["none", *ATTACKS]
    lines = ["| method | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for method in methods:
        cells = []
        for attack in ("", *ATTACKS):
            runs = [[Run(method, attack, rules is DEFAULTS, seed) for seed in seeds] for rules in (OFF, DEFAULTS)]
            cells.append(
                " / ".join(cell([results.found[run] for run in each if run in results.found]) for each in runs)
            )
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Carry out the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description="Measure what lying clients cost.")
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=list(METHODS))
    parser.add_argument("--folder", type=Path, default=Path("attacks"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--bad", type=int, default=4)
    given = parser.parse_args()
    folder, results = given.folder / f"{given.bad}-of-{given.clients}", Results(given.bad, given.clients)
    text = STUDY.format(clients=given.clients, seeds=list(given.seeds))
    text += "".join(f'\n[methods.{name}]\nmethod = "{name}"\n{METHODS[name]}\n' for name in given.methods)
    study = parse_study(tomllib.loads(text), folder, "bench/attacks.py")
    photos = study_photos(study.photos, given.folder / "cache", folder)
    for plan_of_run in plan(study, photos, folder).runs:
        for attack, rules in cases():
            run = Run(plan_of_run.label, attack, rules is DEFAULTS, plan_of_run.seed)
            if run in results.found:
                continue
            for bundle in plan_of_run.bundles:
                export(folder, bundle, lambda stage: None)
            found = accuracy(folder, plan_of_run, attack, rules, given.bad)
            results.add(run, found)
            print(*run, found, flush=True)
    print(table(results, given.methods, given.seeds))


if __name__ == "__main__":
    main()
