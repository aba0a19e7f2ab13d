"""What the operator reads about tasks and rounds: messages turned into plain values, sums into ratios."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import isqrt, sqrt
from typing import Any

from fedlens.reports.macro import macro
from fedlens_proto.v1 import admin_pb2 as pb
from fedlens_proto.v1 import update_pb2

_MOMENTS = {
    update_pb2.EVALUATION_MOMENT_START: "before",
    update_pb2.EVALUATION_MOMENT_END: "after",
    update_pb2.EVALUATION_MOMENT_FINE_TUNED: "fine_tuned",
}


def task_values(task: pb.Task) -> dict[str, Any]:
    """A task as JSON values; digests in hexadecimal."""
    return {
        "id": task.id,
        "name": task.name,
        "state": _word(pb.TaskState.Name(task.state)),
        "reason": task.reason or None,
        "rounds_committed": task.rounds_committed,
        "rounds_total": task.rounds_total,
        "enrolled": task.enrolled,
        "population": task.population,
        "bundles": [digest.hex() for digest in task.bundles],
        "settings": json.loads(task.settings_json or "{}"),
    }


def round_values(result: pb.RoundResult) -> dict[str, Any]:
    """A round as JSON values: its members, and what they measured, as sums and as ratios."""
    states = Counter(_word(pb.MemberState.Name(member.state)) for member in result.members)
    return {
        "round": result.round,
        "phase": result.phase,
        "state": _word(pb.RoundState.Name(result.state)),
        "reason": result.reason or None,
        "counts": dict(sorted(states.items())),
        "personal": {
            name: personal_values(
                (e for m in result.members for e in m.evaluations if e.moment == moment),
                (e for e in result.personal if e.moment == moment),
            )
            for moment, name in _MOMENTS.items()
        },
        "global": _sums(getattr(result, "global")),
        "bytes_received": sum(member.bytes_received for member in result.members),
        "bytes_sent": result.bytes_sent,
        "opened_at": _time(result.opened_at),
        "ended_at": _time(result.ended_at),
        "members": [_member_values(member) for member in result.members],
    }


def personal_values(
    sums: Iterable[update_pb2.EvaluationSums], together: Iterable[update_pb2.EvaluationSums] = ()
) -> dict[str, Any] | None:
    """Personal results of several clients: pooled sums, and mean and deviation of their accuracies.

    Clients without test photos are left out; None if that leaves nobody. The deviation is the population's.

    Args:
        sums: Of each client, all of one moment.
        together: The same, added up and with confusion matrices, where the server gives that.
    """
    tested = [entry for entry in sums if entry.count]
    pooled = _sums(together) or _sums(tested)
    if pooled is None:
        return None
    accuracies = [entry.correct / entry.count for entry in tested]
    mean = sum(accuracies) / len(accuracies)
    deviation = sqrt(sum((accuracy - mean) ** 2 for accuracy in accuracies) / len(accuracies))
    return {"clients": len(tested), "mean_accuracy": mean, "deviation": deviation, "pooled": pooled}


def round_row(values: dict[str, Any]) -> list[str]:
    """A line of the table that `fedlens task show` prints, under `ROUND_COLUMNS`."""
    counts = values["counts"]
    outcome = values["state"] + (f": {values['reason']}" if values["reason"] else "")
    left_out = [
        f"{member['client'][:8]} {member['state']}: {member['reason'] or 'no reason given'}"
        for member in values["members"]
        if member["state"] in ("quarantined", "failed")
    ]
    return [
        str(values["round"]),
        outcome,
        str(sum(counts.values())),
        str(counts.get("reported", 0)),
        "\n".join(left_out) or "-",
        _personal(values["personal"]["before"]),
        _personal(values["personal"]["after"]),
        f"{values['global']['accuracy']:.1%}" if values["global"] else "-",
        f"{values['bytes_received']:,}",
        f"{values['bytes_sent']:,}",
    ]


ROUND_COLUMNS: Sequence[str] = (
    "round",
    "state",
    "members",
    "reported",
    "left out",
    "before",
    "after",
    "global",
    "bytes in",
    "bytes out",
)


def _member_values(member: pb.MemberResult) -> dict[str, Any]:
    return {
        "client": member.client_id.hex(),
        "state": _word(pb.MemberState.Name(member.state)),
        "reason": member.reason or None,
        "num_examples": member.num_examples,
        "bytes_received": member.bytes_received,
        "evaluations": {_MOMENTS[e.moment]: _sums([e]) for e in member.evaluations if e.moment in _MOMENTS},
    }


def _sums(entries: Iterable[update_pb2.EvaluationSums]) -> dict[str, Any] | None:
    listed = list(entries)
    count = sum(entry.count for entry in listed)
    if count == 0:
        return None
    correct, loss = sum(entry.correct for entry in listed), sum(entry.loss for entry in listed)
    values = {"count": count, "correct": correct, "loss": loss, "accuracy": correct / count, "mean_loss": loss / count}
    numbers = [sum(cells) for cells in zip(*(entry.confusion for entry in listed), strict=True)]
    if not numbers:
        return values
    classes = isqrt(len(numbers))
    confusion = [numbers[i : i + classes] for i in range(0, len(numbers), classes)]
    precision, recall = macro(confusion)
    return {**values, "macro_precision": precision, "macro_recall": recall, "confusion": confusion}


def _personal(values: dict[str, Any] | None) -> str:
    return "-" if values is None else f"{values['mean_accuracy']:.1%} ± {values['deviation']:.1%}"


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None


def _word(enum_name: str) -> str:
    return enum_name.rpartition("_STATE_")[2].lower()
