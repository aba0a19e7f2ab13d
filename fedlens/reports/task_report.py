"""Tasks and rounds as JSON values and table rows: messages become plain values, sums become ratios."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isqrt, sqrt
from statistics import fmean
from typing import Any

from fedlens.reports.statement_report import statement_values
from fedlens.reports.tables import counted, plain, readable_bytes
from fedlens.reports.tracking import Tracked
from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2 as pb
from fedlens_proto.v1 import update_pb2

LABELS = {"start": "before", "trained": "after", "fine_tuned": "fine_tuned"}
"""Names of the usual evaluations by label; others are named by their label."""


def task_values(task: pb.Task) -> dict[str, Any]:
    """A task as JSON values; digests in hexadecimal."""
    return {
        "id": task.id,
        "name": task.name,
        "state": wire.word(pb.TaskState, task.state),
        "reason": task.reason or None,
        "rounds_committed": task.rounds_committed,
        "rounds_total": task.rounds_total,
        "enrolled": task.enrolled,
        "population": task.population or None,
        "privacy": _privacy_values(task.privacy) if task.HasField("privacy") else None,
        "bundles": [digest.hex() for digest in task.bundles],
        "released_round": task.released_round or None,
        "awaited_canaries": list(task.awaited_canaries) or None,
        "statements": [statement_values(*each) for each in zip(task.statements, task.bundles, strict=True)],
        "notices": list(task.notices),
        "settings": json.loads(task.settings_json or "{}"),
    }


def _privacy_values(privacy: pb.Privacy) -> dict[str, Any]:
    return {
        "delta": privacy.delta,
        "epsilon": privacy.epsilon,
        "spent": privacy.spent,
        "participations": privacy.participations,
    }


def privacy_line(values: dict[str, Any]) -> str | None:
    """The privacy of a task in words; None: it has none."""
    privacy = values["privacy"]
    if privacy is None:
        return None
    rounds = counted(privacy["participations"], "round")
    return (
        f"privacy: epsilon {privacy['epsilon']:.3g} at delta {privacy['delta']:g} for a client that takes part as "
        f"often as it may; at most {privacy['spent']:.3g} spent so far, in {rounds}"
    )


def settings_line(settings: Mapping[str, Any]) -> str:
    """The settings of a task that are set, by default or not, as `fedlens task set` takes them."""
    return "settings: " + " ".join(f"{key}={_setting(value)}" for key, value in settings.items() if value is not None)


def changes(before: pb.Task, after: pb.Task, keys: Iterable[str]) -> list[str]:
    """A line for each of these settings: its earlier and its present value."""
    old, new = json.loads(before.settings_json), json.loads(after.settings_json)
    return [f"{key}: {_setting(old.get(key))} -> {_setting(new.get(key))}" for key in keys]


def _setting(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


TASK_COLUMNS: Sequence[str] = ("id", "name", "state", "method", "rounds", "clients")


def task_row(values: dict[str, Any]) -> list[str]:
    """A row under `TASK_COLUMNS`."""
    return [
        str(values["id"]),
        values["name"],
        values["state"] + (f": {values['reason']}" if values["reason"] else ""),
        values["settings"].get("method", "-"),
        f"{values['rounds_committed']} of {values['rounds_total']}",
        str(values["enrolled"]) + (f" of {values['population']}" if values["population"] else ""),
    ]


def round_values(result: pb.RoundResult) -> dict[str, Any]:
    """A round as JSON values, with its members and their evaluation results as sums and ratios."""
    states = Counter(wire.word(pb.MemberState, member.state) for member in result.members)
    states.update({wire.word(pb.MemberState, each.state): each.members for each in result.unlisted})
    return {
        "round": result.round,
        "phase": result.phase,
        "state": wire.word(pb.RoundState, result.state),
        "reason": result.reason or None,
        "overdue": result.overdue,
        "counts": dict(sorted(states.items())),
        "personal": {
            LABELS.get(label, label): personal_values(
                (e for m in result.members for e in m.evaluations if e.label == label),
                (e for e in result.personal if e.label == label),
            )
            for label in dict.fromkeys([*LABELS, *(e.label for m in result.members for e in m.evaluations)])
        },
        "global": _sums(getattr(result, "global")),
        "bytes_received": sum(member.bytes_received for member in result.members)
        + sum(each.bytes_received for each in result.unlisted),
        "bytes_sent": result.bytes_sent,
        "opened_at": _time(result.opened_at),
        "ended_at": _time(result.ended_at),
        "members": [_member_values(member) for member in result.members],
    }


def personal_values(
    sums: Iterable[update_pb2.EvaluationSums], together: Iterable[update_pb2.EvaluationSums] = ()
) -> dict[str, Any] | None:
    """Personal results of several clients: pooled sums, and mean and population deviation of their accuracies.

    Args:
        sums: Each client's results with one label; those without test photos do not count.
        together: Their sum with confusion matrices, if the server sends it.

    Returns:
        None if no client has test photos.
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
    """A row under `ROUND_COLUMNS`."""
    counts = values["counts"]
    return [
        str(values["round"]),
        values["state"],
        f"{counts.get('reported', 0)} of {sum(counts.values())}",
        str(counts.get("late", 0)),
        str(sum(counts.get(state, 0) for state in _LEFT_OUT)),
        *_personal(values["personal"]["before"]),
        *_personal(values["personal"]["after"]),
        f"{values['global']['accuracy']:.1%}" if values["global"] else "-",
        readable_bytes(values["bytes_received"]),
        readable_bytes(values["bytes_sent"]),
    ]


def round_lines(values: dict[str, Any]) -> list[str]:
    """Lines below the table: why a round is not committed, and who was left out of it and why."""
    reason = "overdue, waits for more updates" if values["overdue"] else values["reason"]
    lines = [f"{values['state']}: {reason}"] if reason else []
    for member in values["members"]:
        if member["state"] in _LEFT_OUT:
            lines.append(f"{member['client'][:12]} {member['state']}: {member['reason'] or 'no reason given'}")
    return [plain(f"round {values['round']}: {line}") for line in lines]


def last_end(response: pb.ShowTaskResponse) -> str:
    """The state of the last round that takes no more updates, in words; there is one."""
    values = round_values([each for each in response.rounds if each.state != pb.ROUND_STATE_OPEN][-1])
    came = counted(values["counts"].get("reported", 0), "update")
    more = f": {values['reason']}" if values["reason"] else ""
    return plain(f"round {values['round']} is {values['state']} with {came}{more}")


ROUND_COLUMNS: Sequence[str] = (
    *("round", "state", "reported", "late", "left out"),
    *("before", "±", "after", "±", "global", "bytes in", "bytes out"),
)
DROPPED_COLUMNS: Sequence[str] = ("±", "bytes out", "bytes in", "late")
"""Those that a narrow terminal does without, the first of them first."""
_LEFT_OUT = ("quarantined", "excluded", "failed")


def _member_values(member: pb.MemberResult) -> dict[str, Any]:
    return {
        "client": member.client_id.hex(),
        "state": wire.word(pb.MemberState, member.state),
        "reason": member.reason or None,
        "num_examples": member.num_examples,
        "bytes_received": member.bytes_received,
        "evaluations": {LABELS.get(e.label, e.label): _sums([e]) for e in member.evaluations},
    }


def figures(values: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies and bytes of a round, as `round_values` has it, by name; what was not measured is left out."""
    found = {"bytes_up": values["bytes_received"], "bytes_down": values["bytes_sent"]}
    sums = {"global": values["global"]}
    for name, personal in values["personal"].items():
        if personal is not None:
            found[f"personal_{name}_accuracy"] = personal["mean_accuracy"]
            sums[f"pooled_{name}"] = personal["pooled"]
    measures = ("accuracy", "mean_loss", "macro_precision", "macro_recall")
    return found | {
        f"{name}_{measure}": each[measure]
        for name, each in sums.items()
        if each is not None
        for measure in measures
        if measure in each
    }


def tracked(task: pb.Task, rounds: Iterable[Mapping[str, Any]]) -> Tracked:
    """The figures of a task's committed rounds, which are as `round_values` has them."""
    committed = [entry for entry in rounds if entry["state"] == "committed"]
    return Tracked(task.name, json.loads(task.settings_json or "{}"), [(e["round"], figures(e)) for e in committed])


def unfinished(response: pb.ShowTaskResponse) -> str:
    """The state of a task that did not finish, with the reasons of the server and of one client."""
    task = response.task
    reasons = [member.reason for result in response.rounds for member in result.members if member.reason]
    detail = f"; a client says: {reasons[0]}" if reasons else ""
    return (
        f"the task is {wire.word(pb.TaskState, task.state)} after {task.rounds_committed} of {task.rounds_total} "
        f"rounds: {task.reason}{detail}"
    )


def macro(confusion: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Precision and recall, each the mean over classes.

    A class that is never predicted has precision 0, as in scikit-learn; one without test photos does not count.

    Args:
        confusion: Photos by true class and, within it, predicted class; not all 0.
    """
    classes = [c for c, row in enumerate(confusion) if sum(row)]
    predicted = [sum(row[c] for row in confusion) for c in range(len(confusion))]
    precision = fmean(confusion[c][c] / predicted[c] if predicted[c] else 0.0 for c in classes)
    recall = fmean(confusion[c][c] / sum(confusion[c]) for c in classes)
    return precision, recall


def _sums(entries: Iterable[update_pb2.EvaluationSums]) -> dict[str, Any] | None:
    listed = list(entries)
    count = sum(entry.count for entry in listed)
    if count == 0:
        return None
    correct, loss = sum(entry.correct for entry in listed), sum(entry.loss for entry in listed)
    numbers = [sum(cells) for cells in zip(*(entry.confusion for entry in listed), strict=True)]
    classes = isqrt(len(numbers))
    confusion = [numbers[i : i + classes] for i in range(0, len(numbers), classes or 1)]
    return with_ratios({"count": count, "correct": correct, "loss": loss, "confusion": confusion})


def with_ratios(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Sums over test photos with accuracy and mean loss; with a confusion matrix also macro precision and recall."""
    values = {key: sums[key] for key in ("count", "correct", "loss")}
    values |= {"accuracy": sums["correct"] / sums["count"], "mean_loss": sums["loss"] / sums["count"]}
    if not sums["confusion"]:
        return values
    precision, recall = macro(sums["confusion"])
    return {**values, "macro_precision": precision, "macro_recall": recall, "confusion": sums["confusion"]}


def _personal(values: dict[str, Any] | None) -> tuple[str, str]:
    return ("-", "-") if values is None else (f"{values['mean_accuracy']:.1%}", f"{values['deviation']:.1%}")


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None
