"""What clients measure and tell beside tensors: settled for the whole task when it is made, checked in each header.

A task that asks for noisy label distributions asks its trainers for nothing exact: no class counts, no evaluation and
no confusion matrices, from which the noise could be subtracted. Evaluators, whose photos are nobody's secret, still
measure the global model.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from fedlens_proto.v1 import assignment_pb2, update_pb2
from fedlens_server.engine import local_plans
from fedlens_server.errors import Malformed
from fedlens_server.methods import Phase
from fedlens_server.planning.task_settings import MAX_COUNT, SettingsError, TaskSettings

# Bytes of a header's 64 KiB that confusion matrices take where every number is below 128; larger ones have the rest.
MAX_CONFUSION_NUMBERS = 48_000
# Noise of an epsilon above 1e-7 stays below it. Distances to larger shares drown those between all others; from 1e154
# on they are infinite.
MAX_SHARE = 1e9


def settle(settings: TaskSettings, phases: Sequence[Phase], classes: int) -> list[Phase]:
    """All phases of a task as clients get them: with what the settings ask for, without what must not be asked.

    Args:
        settings: Of the task.
        phases: As the method gives them, and one for personal evaluation where that is asked for.
        classes: How many there are.

    Raises:
        SettingsError: A setting asks for what cannot be answered.
        Malformed: The method asks for what would undo the noise of a label distribution.
    """
    if any(asks(phase.local_plan, "label_distribution") for phase in phases):
        settled = [_without_exact(settings, phase) for phase in phases]
    else:
        settled = [replace(phase, local_plan=measured(phase.local_plan, settings)) for phase in phases]
    most = max(1, *(len(local_plans.moments(phase.local_plan)) for phase in settled))  # an evaluator's is one
    if settings.confusion and most * classes**2 > MAX_CONFUSION_NUMBERS:
        raise SettingsError(
            "confusion",
            f"true with {classes} classes and {most} evaluations a round",
            f"false where there are more than {MAX_CONFUSION_NUMBERS} numbers to send",
        )
    return settled


def measured(local_plan: assignment_pb2.LocalPlan, settings: TaskSettings) -> assignment_pb2.LocalPlan:
    """The pass with a confusion matrix for each of its evaluations, if the settings say so."""
    if not settings.confusion or not local_plans.moments(local_plan) or asks(local_plan, "confusion"):
        return local_plan
    asking = assignment_pb2.LocalPlan()
    asking.CopyFrom(local_plan)
    asking.statistics.add().confusion.SetInParent()
    return asking


def asks(local_plan: assignment_pb2.LocalPlan, question: str) -> bool:
    """Whether clients answer this question."""
    return any(ask.WhichOneof("kind") == question for ask in local_plan.statistics)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the header of an answer must hold.

    Attributes:
        classes: How many there are.
        moments: At which of them there may be sums.
        class_counts: Whether there are photos per class.
        label_distribution: Whether there are noisy shares.
        confusion: Whether sums have confusion matrices.
    """

    classes: int
    moments: tuple[update_pb2.EvaluationMoment, ...]
    class_counts: bool
    label_distribution: bool
    confusion: bool

    @classmethod
    def by(cls, local_plan: assignment_pb2.LocalPlan, classes: int) -> "Asked":
        """What a local plan asks for."""
        return cls(
            classes=classes,
            moments=tuple(local_plans.moments(local_plan)),
            class_counts=asks(local_plan, "class_counts"),
            label_distribution=asks(local_plan, "label_distribution"),
            confusion=asks(local_plan, "confusion"),
        )


def fault(header: update_pb2.UpdateHeader, asked: Asked) -> str | None:
    """What is wrong with the answers in a header; None: nothing."""
    return _counts_fault(header, asked) or _shares_fault(header, asked) or _sums_fault(header, asked)


def sums_json(header: update_pb2.UpdateHeader) -> str:
    """Evaluation sums as kept in the database."""
    return json.dumps([_values(sums) for sums in header.evaluations])


def sums_of(text: str) -> list[update_pb2.EvaluationSums]:
    """Evaluation sums from the database."""
    found = []
    for moment, count, correct, loss, *confusion in json.loads(text):
        numbers = confusion[0] if confusion else ()
        found.append(
            update_pb2.EvaluationSums(moment=moment, count=count, correct=correct, loss=loss, confusion=numbers)
        )
    return found


def add_up(all_sums: Iterable[update_pb2.EvaluationSums]) -> list[update_pb2.EvaluationSums]:
    """Sums over clients, by moment ascending."""
    totals: dict[update_pb2.EvaluationMoment, update_pb2.EvaluationSums] = {}
    for sums in all_sums:
        total = totals.setdefault(sums.moment, update_pb2.EvaluationSums(moment=sums.moment))
        total.count += sums.count
        total.correct += sums.correct
        total.loss += sums.loss
        if sums.confusion:
            before = total.confusion or [0] * len(sums.confusion)
            total.confusion[:] = [a + b for a, b in zip(before, sums.confusion, strict=True)]
    return [totals[moment] for moment in sorted(totals)]


def without_confusion(sums: update_pb2.EvaluationSums) -> update_pb2.EvaluationSums:
    """The same sums without a confusion matrix, of which a thousand members' would be too much for one message."""
    return update_pb2.EvaluationSums(moment=sums.moment, count=sums.count, correct=sums.correct, loss=sums.loss)


def _without_exact(settings: TaskSettings, phase: Phase) -> Phase:
    if settings.personal_evaluation:
        raise SettingsError("personal_evaluation", "true", "false: the method asks for noisy label distributions")
    for question in ("class_counts", "confusion"):
        if asks(phase.local_plan, question):
            raise Malformed(f"phase {phase.name!r} asks for {question} in a task with noisy label distributions")
    private = assignment_pb2.LocalPlan()
    private.CopyFrom(phase.local_plan)
    private.ClearField("evaluation")
    return replace(phase, local_plan=private)


def _counts_fault(header: update_pb2.UpdateHeader, asked: Asked) -> str | None:
    if not asked.class_counts:
        return "class_counts came where none were asked for" if header.class_counts else None
    if len(header.class_counts) == asked.classes and sum(header.class_counts) == header.num_examples:
        return None
    return (
        f"class_counts: found {len(header.class_counts)} counts that add up to {sum(header.class_counts)}, "
        f"must be {asked.classes} that add up to num_examples, {header.num_examples}"
    )


def _shares_fault(header: update_pb2.UpdateHeader, asked: Asked) -> str | None:
    shares = header.label_distribution
    if not asked.label_distribution:
        return "a label_distribution came where none was asked for" if shares else None
    if len(shares) != asked.classes:
        return f"label_distribution: found {len(shares)} numbers, must be {asked.classes}"
    wrong = [share for share in shares if not abs(share) <= MAX_SHARE]
    return f"label_distribution: found {wrong[0]:g}, must be from {-MAX_SHARE:g} to {MAX_SHARE:g}" if wrong else None


def _sums_fault(header: update_pb2.UpdateHeader, asked: Asked) -> str | None:
    found = [sums.moment for sums in header.evaluations]
    if found != sorted(set(found)) or not set(found) <= set(asked.moments):
        return f"evaluations: found moments {found}, asked for were {list(asked.moments)}"
    for sums in header.evaluations:
        if sums.count > MAX_COUNT or sums.correct > sums.count:
            return f"evaluations: {sums.correct} of {sums.count} photos right"
        if not isfinite(sums.loss) or sums.loss < 0 or (sums.count == 0 and sums.loss != 0):
            return f"evaluations: a loss of {sums.loss:g} over {sums.count} photos"
        if reason := _confusion_fault(sums, asked):
            return f"evaluations: {reason}"
    return None


def _confusion_fault(sums: update_pb2.EvaluationSums, asked: Asked) -> str | None:
    found = sums.confusion
    if not asked.confusion:
        return "a confusion matrix came where none was asked for" if found else None
    if len(found) != asked.classes**2:
        return f"a confusion matrix of {len(found)} numbers, must be {asked.classes} x {asked.classes}"
    right = sum(found[:: asked.classes + 1])
    if sum(found) != sums.count or right != sums.correct:
        return (
            f"a confusion matrix of {sum(found)} photos, {right} of them right, beside {sums.correct} of {sums.count} "
            "photos right"
        )
    return None


def _values(sums: update_pb2.EvaluationSums) -> list[Any]:
    values: list[Any] = [sums.moment, sums.count, sums.correct, sums.loss]
    return [*values, list(sums.confusion)] if sums.confusion else values
