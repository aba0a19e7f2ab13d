"""Differences between methods, paired by seed: mean, 95 % interval of Student's t, and p of the paired t-test."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from fedlens.compare.columns import COLUMNS, Column
from fedlens.compare.report.summary import MethodSummary
from fedlens.compare.study import Study

CONFIDENCE = 0.95
ACCURACIES: Sequence[Column] = tuple(column for column in COLUMNS if column.endswith("_accuracy"))
_EQUAL = 1e-9  # only rounding makes deviations below this


class Difference(NamedTuple):
    """A method minus its baseline in one column, from -1 to 1.

    Attributes:
        label: Label of the method.
        baseline: Label of the baseline.
        seeds: Number of seeds that both have.
        interval: Bounds of the 95 % interval; None for one seed, or if all seeds differ by the same amount.
        p: Two-sided, for a true difference of 0; None as `interval`.
    """

    label: str
    baseline: str
    column: Column
    seeds: int
    mean: float
    interval: tuple[float, float] | None
    p: float | None


def differences(
    study: Study, summaries: Sequence[MethodSummary], columns: Sequence[Column] = ACCURACIES
) -> list[Difference]:
    """Every method against its baseline, in the chosen columns, or in every accuracy, that both have for a seed."""
    by_label = {summary.label: summary.by_seed for summary in summaries}
    found = []
    for label, by_seed in by_label.items():
        baseline = baseline_of(study, label)
        if baseline is None or baseline == label or baseline not in by_label:
            continue
        for column in columns:
            pairs = [
                (values[column], other[column])
                for seed, values in by_seed.items()
                if column in values and column in (other := by_label[baseline].get(seed, {}))
            ]
            if pairs:
                found.append(_difference(label, baseline, column, pairs))
    return found


def baseline_of(study: Study, label: str) -> str | None:
    """The study's baseline; without one, the method of clients that train alone with the same head and models."""
    if study.baseline is not None:
        return study.baseline

    def kind(name: str) -> tuple[object, ...]:
        return study.methods[name].head or study.model.head, study.models_of(name)

    alike = (
        other
        for other, method in study.methods.items()
        if method.method == "local_only" and study.clients_of(other) == study.clients and kind(other) == kind(label)
    )
    return next(alike, None)


def _difference(label: str, baseline: str, column: Column, pairs: Sequence[tuple[float, float]]) -> Difference:
    gains = [own - other for own, other in pairs]
    mean = math.fsum(gains) / len(gains)
    if len(gains) == 1 or statistics.stdev(gains) < _EQUAL:  # nothing to judge the mean by
        return Difference(label, baseline, column, len(gains), mean, None, None)
    test: Any = stats.ttest_1samp(gains, 0.0)
    low, high = test.confidence_interval(CONFIDENCE)
    return Difference(label, baseline, column, len(gains), mean, (float(low), float(high)), float(test.pvalue))
