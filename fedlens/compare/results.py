"""A run's results as JSON values, read from the task's own record.

Every value but those under `made` follows from study, photos and seed, on processors of one kind.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlens.compare.columns import FORM
from fedlens.compare.plan import RunPlan
from fedlens.compare.run.running import RunResult
from fedlens.reports.task_report import LABELS, round_values
from fedlens.whole_file import replacing
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_proto.v1 import admin_pb2 as pb


def run_values(
    plan: RunPlan, result: RunResult, seconds: Mapping[int, float], made: Mapping[str, str]
) -> dict[str, Any]:
    """A finished run; `seconds` are those of each round by number, `made` says with what and where it was made."""
    names = {plan.fleet.client_id(index).hex(): client_name(index) for index in plan.fleet.indices}
    task = result.shown.task
    values = {
        "form": FORM,
        "label": plan.label,
        "seed": plan.seed,
        "fingerprint": plan.fingerprint,
        "settings": json.loads(task.settings_json),
        "photos": plan.photos,
        "partition": plan.fleet.partition.summary,
        "clients": plan.fleet.clients,
        "bundles": [
            {"model": bundle.model, "objective": bundle.objective, "id": digest.hex()}
            for bundle, digest in zip(plan.bundles, task.bundles, strict=True)
        ],
        "class_names": list(plan.bundles[0].class_names),
        "model_sha256": None if result.model is None else sha256(result.model).hexdigest(),
        "rounds": [_round(each, names) for each in result.shown.rounds],
        "made": {**made, "seconds": {number: round(spent, 4) for number, spent in sorted(seconds.items())}},
    }
    if result.clusters:
        values["clusters"] = _clusters(plan.fleet, result.clusters, plan.bundles[0].class_names)
    return values if result.examined is None else values | {"examination": result.examined}


def write_json(path: Path, values: Any) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")


def _clusters(fleet: FleetConfig, clusters: Mapping[bytes, int], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Of each cluster that has clients, in order of its number, their names and their train photos by class."""
    members: dict[int, list[int]] = {}
    for index in range(fleet.first, fleet.first + fleet.clients):
        if (number := clusters.get(fleet.client_id(index))) is not None:
            members.setdefault(number, []).append(index)
    found = []
    for _, indices in sorted(members.items()):
        # As the album was in the first round, when FedConcat's clusters are made.
        photos = (photo for index in indices for photo in fleet.album(index).photos(1).photos)
        labels = Counter(photo.label for photo in photos if not photo.is_test)
        names = [client_name(index) for index in indices]
        found.append({"clients": names, "photos": [labels[name] for name in class_names]})
    return found


def _round(result: pb.RoundResult, names: Mapping[str, str]) -> dict[str, Any]:
    values = round_values(result)
    personal = {f"personal_{name}": _pooled(found and found["pooled"]) for name, found in values["personal"].items()}
    return {
        **{key: values[key] for key in ("round", "phase", "state", "reason")},
        "global": _pooled(values["global"]),
        **personal,
        "bytes_up": values["bytes_received"],
        "bytes_down": values["bytes_sent"],
        "members": [
            {
                **_evaluations(member),
                "client": names.get(shown["client"], shown["client"]),
                **{key: shown[key] for key in ("state", "reason")},
                "photos": shown["num_examples"],
                "bytes_up": shown["bytes_received"],
            }
            for shown, member in zip(values["members"], result.members, strict=True)
        ],
    }


def _pooled(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Sums with a confusion matrix, a row for each true class; None where the task does not ask for one."""
    if values is None:
        return None
    return {key: values[key] for key in ("count", "correct", "loss")} | {"confusion": values.get("confusion")}


def _evaluations(member: pb.MemberResult) -> dict[str, dict[str, Any]]:
    """A member's sums by label, also those of a member without test photos."""
    return {
        LABELS.get(entry.label, entry.label): {"count": entry.count, "correct": entry.correct, "loss": entry.loss}
        for entry in member.evaluations
    }
