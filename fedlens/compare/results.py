"""A run's results as JSON values, read from the task's own record; only the seconds are measured here."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlens.compare.plan import RunPlan
from fedlens.compare.run.running import RunResult
from fedlens.reports.task_report import round_values
from fedlens.whole_file import replacing
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_proto.v1 import admin_pb2 as pb
from fedlens_proto.v1 import update_pb2


def run_values(plan: RunPlan, result: RunResult, seconds: Mapping[int, float]) -> dict[str, Any]:
    """A finished run; `seconds` are those of each round on this machine, by number."""
    names = {plan.fleet.client_id(index).hex(): client_name(index) for index in plan.fleet.indices}
    task = result.shown.task
    values = {
        "label": plan.label,
        "seed": plan.seed,
        "fingerprint": plan.fingerprint,
        "settings": json.loads(task.settings_json),
        "partition": plan.fleet.partition.summary,
        "clients": plan.fleet.clients,
        "bundles": [
            {"model": bundle.model, "objective": bundle.objective, "id": digest.hex()}
            for bundle, digest in zip(plan.bundles, task.bundles, strict=True)
        ],
        "class_names": list(plan.bundles[0].class_names),
        "model_sha256": None if result.model is None else sha256(result.model).hexdigest(),
        "rounds": [_round(each, names, seconds.get(each.round)) for each in result.shown.rounds],
    }
    return values if result.examined is None else values | {"examination": result.examined}


def write_json(path: Path, values: Any) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")


def _round(result: pb.RoundResult, names: Mapping[str, str], seconds: float | None) -> dict[str, Any]:
    values = round_values(result)
    before, after = values["personal"]["before"], values["personal"]["after"]
    return {
        **{key: values[key] for key in ("round", "phase", "state", "reason")},
        "global": _pooled(values["global"]),
        "personal_start": _pooled(before and before["pooled"]),
        "personal_end": _pooled(after and after["pooled"]),
        "bytes_up": values["bytes_received"],
        "bytes_down": values["bytes_sent"],
        "seconds": None if seconds is None else round(seconds, 4),
        "members": [
            {
                "client": names.get(shown["client"], shown["client"]),
                **{key: shown[key] for key in ("state", "reason")},
                "photos": shown["num_examples"],
                "bytes_up": shown["bytes_received"],
                "start": _sums(member, update_pb2.EVALUATION_MOMENT_START),
                "end": _sums(member, update_pb2.EVALUATION_MOMENT_END),
            }
            for shown, member in zip(values["members"], result.members, strict=True)
        ],
    }


def _pooled(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Sums with a confusion matrix, a row for each true class; None where the task does not ask for one."""
    if values is None:
        return None
    return {key: values[key] for key in ("count", "correct", "loss")} | {"confusion": values.get("confusion")}


def _sums(member: pb.MemberResult, moment: update_pb2.EvaluationMoment) -> dict[str, Any] | None:
    """A member's sums, also those of a member without test photos."""
    found = {entry.moment: entry for entry in member.evaluations}.get(moment)
    return None if found is None else {"count": found.count, "correct": found.correct, "loss": found.loss}
