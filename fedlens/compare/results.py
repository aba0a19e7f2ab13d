"""What a run says, as JSON values: everything from the task's own record, nothing measured but the time."""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlens.compare.plan import RunPlan
from fedlens.compare.run.running import RunAnswer
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_proto.v1 import admin_pb2 as pb
from fedlens_proto.v1 import update_pb2

START, END = update_pb2.EVALUATION_MOMENT_START, update_pb2.EVALUATION_MOMENT_END


def run_values(plan: RunPlan, answer: RunAnswer, seconds: dict[int, float]) -> dict[str, Any]:
    """A finished run.

    Args:
        plan: What was to be done.
        answer: What came out.
        seconds: That each round took on this machine, by number.
    """
    names = {plan.fleet.client_id(index): client_name(index) for index in plan.fleet.indices}
    settings = json.loads(answer.shown.task.settings_json)
    rounds = [_round(result, names, seconds.get(result.round)) for result in answer.shown.rounds]
    values = {
        "label": plan.label,
        "seed": plan.seed,
        "fingerprint": plan.fingerprint,
        "settings": settings,
        "partition": plan.fleet.partition.summary,
        "clients": plan.fleet.clients,
        "bundles": [
            {"model": bundle.model, "objective": bundle.objective, "id": digest.hex()}
            for bundle, digest in zip(plan.bundles, answer.shown.task.bundles, strict=True)
        ],
        "class_names": list(plan.bundles[0].class_names),
        "model_sha256": None if answer.model is None else sha256(answer.model).hexdigest(),
        "rounds": rounds,
    }
    return values if answer.examined is None else values | {"examination": answer.examined}


def write_json(path: Path, values: Any) -> None:
    """Write a file that is there in whole or not at all."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _round(result: pb.RoundResult, names: dict[bytes, str], seconds: float | None) -> dict[str, Any]:
    return {
        "round": result.round,
        "phase": result.phase,
        "state": pb.RoundState.Name(result.state).removeprefix("ROUND_STATE_").lower(),
        "reason": result.reason or None,
        "global": _sums(getattr(result, "global")),
        "personal_start": _sums(sums for sums in result.personal if sums.moment == START),
        "personal_end": _sums(sums for sums in result.personal if sums.moment == END),
        "bytes_up": sum(member.bytes_received for member in result.members),
        "bytes_down": result.bytes_sent,
        "seconds": None if seconds is None else round(seconds, 4),
        "members": [_member(member, names) for member in result.members],
    }


def _member(member: pb.MemberResult, names: dict[bytes, str]) -> dict[str, Any]:
    by_moment = {sums.moment: sums for sums in member.evaluations}
    return {
        "client": names.get(member.client_id, member.client_id.hex()),
        "state": pb.MemberState.Name(member.state).removeprefix("MEMBER_STATE_").lower(),
        "reason": member.reason or None,
        "photos": member.num_examples,
        "bytes_up": member.bytes_received,
        "start": _counts(by_moment.get(START)),
        "end": _counts(by_moment.get(END)),
    }


def _counts(sums: update_pb2.EvaluationSums | None) -> dict[str, Any] | None:
    if sums is None:
        return None
    return {"count": sums.count, "correct": sums.correct, "loss": sums.loss}


def _sums(entries: Iterable[update_pb2.EvaluationSums]) -> dict[str, Any] | None:
    """Pooled; `confusion` has a row for each true class, and is None where it was not asked for."""
    tested = [sums for sums in entries if sums.count]
    if not tested:
        return None
    cells = len(tested[0].confusion)
    pooled = [sum(sums.confusion[i] for sums in tested) for i in range(cells)]
    side = round(cells**0.5)
    return {
        "count": sum(sums.count for sums in tested),
        "correct": sum(sums.correct for sums in tested),
        "loss": sum(sums.loss for sums in tested),
        "confusion": [pooled[i * side : (i + 1) * side] for i in range(side)] if cells else None,
    }
