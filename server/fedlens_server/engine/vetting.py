"""Vetting of updates: whether header, statistics and norm are what the assignment asked for."""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, inf, isfinite, prod, sqrt

import numpy as np

from fedlens_proto import plans
from fedlens_proto.layout import TensorSpec
from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2
from fedlens_server.engine.task import Task, TaskBundle
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import Norms, TensorSet, span
from fedlens_server.store import RestoredTensors, Store, StoredTensors
from fedlens_server.store.columns import BlobSets

# Noise of an epsilon above 1e-7 stays below it. Distances to larger shares drown those between all others; from 1e154
# on they are infinite.
MAX_SHARE = 1e9
_SPAN = 1 << 16


def update_fault(
    task: Task, phase: int, bundle: TaskBundle, header: update_pb2.UpdateHeader, norms: Sequence[Norms]
) -> str | None:
    """The reason why an update is not acceptable; None: it is. `norms` as of `upload_norms`, none: not needed."""
    settings, local_plan = task.settings, task.phases[phase].plan
    if header.phase != phase:
        return f"phase: found {header.phase}, the round is of phase {phase}"
    if header.bundle != bundle.id:
        return f"bundle: found {header.bundle.hex()[:80] or 'none'}, the assignment has {bundle.id.hex()}"
    if reason := uploads_fault(header, local_plan):
        return reason
    # With privacy the number is not used: neither must it tell, by a quarantine, something of the client.
    if settings.dp is None and header.num_examples > settings.max_photos_per_client:
        return f"num_examples: found {header.num_examples}, at most {settings.max_photos_per_client} are allowed"
    if reason := statistics_fault(header, local_plan, len(bundle.manifest.class_names), settings.max_photos_per_client):
        return reason
    for upload, norm in zip(local_plan.uploads, norms, strict=False):
        if not isfinite(norm.total):
            return f"upload {upload.name!r}: the difference and what it is added to give an infinity"
    most = settings.max_update_norm
    if most is not None and norms and not norms[0].total <= most:
        return f"upload {local_plan.uploads[0].name!r} has norm {norms[0].total:g}, at most {most:g} is allowed"
    return None


def uploads_fault(header: update_pb2.UpdateHeader, local_plan: assignment_pb2.LocalPlan) -> str | None:
    """The reason why the uploads that a header lists are not those of the plan; None: they are."""
    found, asked = [upload.name for upload in header.uploads], [upload.name for upload in local_plan.uploads]
    return None if found == asked else f"uploads: found {_listed(found)}, asked for were {_listed(asked)}"


def statistics_fault(
    header: update_pb2.UpdateHeader, local_plan: assignment_pb2.LocalPlan, classes: int, most_photos: int
) -> str | None:
    """The first statistic in a header that is not what the plan asks for, in words; None: all are."""
    return (
        _counts_fault(header, classes if plans.asks(local_plan, "class_counts") else None)
        or _shares_fault(header, classes if plans.asks(local_plan, "label_distribution") else None)
        or _sums_fault(header, local_plan, classes, most_photos)
    )


def upload_norms(
    store: Store,
    local_plan: assignment_pb2.LocalPlan,
    bundle: TaskBundle,
    sets: BlobSets,
    uploads: Sequence[StoredTensors],
) -> tuple[Norms, ...]:
    """The norms of each upload, in float64.

    Args:
        store: Holds the downloads.
        local_plan: Of the client's phase.
        bundle: The client's.
        sets: The client's downloads.
        uploads: In the plan's order.

    Returns:
        Infinity for an upload that is a difference and with its base gives an infinity.
    """
    downloads = {item.name: store.tensors(item.sha256) for item in sets}
    norms = []
    for upload, sent in zip(local_plan.uploads, uploads, strict=False):
        uploaded = RestoredTensors(downloads[upload.base], sent) if upload.base else sent
        floats = [spec for spec in sent.layout.specs if spec.dtype != blob_pb2.DTYPE_INT64]
        if upload.name != WEIGHTS:
            norms.append(Norms(0.0, 0.0, sqrt(_squares(uploaded, floats, None))))
            continue
        starts = plans.starts(local_plan, upload, bundle.manifest)
        norms.append(_norms(uploaded, floats, starts, downloads, bundle.buffers))
    return tuple(norms)


def norms_for_rules(names: Sequence[str], norms: Sequence[Norms]) -> Norms | None:
    """The norms that rules look at, of uploads of these names: those of the weights or, without any, of all tables."""
    by_name = dict(zip(names, norms, strict=False))
    if WEIGHTS in by_name or not by_name:
        return by_name.get(WEIGHTS)
    return Norms(0.0, 0.0, hypot(*(each.own for each in by_name.values())))


def _norms(
    uploaded: TensorSet,
    floats: Sequence[TensorSpec],
    starts: Mapping[str, str],
    downloads: Mapping[str, TensorSet],
    buffers: frozenset[str],
) -> Norms:
    squares = {"trained": 0.0, "buffers": 0.0, "own": 0.0}
    free: list[TensorSpec] = []  # their start is the client's choice
    for spec in floats:
        base = downloads.get(starts.get(spec.name, ""))
        if base is None or spec.name not in base:
            free.append(spec)
        else:
            squares["buffers" if spec.name in buffers else "trained"] += _squares(uploaded, [spec], base)
    holding = {name: base for name, base in downloads.items() if free and all(spec.name in base for spec in free)}
    nearest = ""
    if holding:
        distances = {name: _squares(uploaded, free, base) for name, base in sorted(holding.items())}
        nearest = min(distances, key=distances.__getitem__)
        of_buffers = _squares(uploaded, [spec for spec in free if spec.name in buffers], holding[nearest])
        squares["buffers"] += of_buffers
        squares["trained"] += distances[nearest] - of_buffers if isfinite(of_buffers) else inf
    else:
        squares["own"] = _squares(uploaded, free, None)
    return Norms(**{kind: sqrt(found) for kind, found in squares.items()}, nearest=nearest)


def _squares(uploaded: TensorSet, tensors: Iterable[TensorSpec], base: TensorSet | None) -> float:
    """The sum of squares of these tensors, less `base`; infinite if they are not finite."""
    total = 0.0
    here, there = np.empty(_SPAN, np.float32), np.empty(_SPAN, np.float32)
    for spec in tensors:
        size = prod(spec.shape)
        for a in range(0, size, _SPAN):
            b = min(a + _SPAN, size)
            with np.errstate(invalid="ignore"):  # of a NaN, which makes the sum one
                difference = span(uploaded, spec.name, a, b, here).astype(np.float64)
                if base is not None:
                    difference -= span(base, spec.name, a, b, there)
                total += float(difference @ difference)
    return total if isfinite(total) else inf


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)[:200] or "none"


def _counts_fault(header: update_pb2.UpdateHeader, classes: int | None) -> str | None:
    if classes is None:
        return "class_counts came where none were asked for" if header.class_counts else None
    if len(header.class_counts) == classes and sum(header.class_counts) == header.num_examples:
        return None
    return (
        f"class_counts: found {len(header.class_counts)} counts that add up to {sum(header.class_counts)}, "
        f"must be {classes} that add up to num_examples, {header.num_examples}"
    )


def _shares_fault(header: update_pb2.UpdateHeader, classes: int | None) -> str | None:
    shares = header.label_distribution
    if classes is None:
        return "a label_distribution came where none was asked for" if shares else None
    if len(shares) != classes:
        return f"label_distribution: found {len(shares)} numbers, must be {classes}"
    wrong = [share for share in shares if not abs(share) <= MAX_SHARE]
    return f"label_distribution: found {wrong[0]:g}, must be from {-MAX_SHARE:g} to {MAX_SHARE:g}" if wrong else None


def _sums_fault(
    header: update_pb2.UpdateHeader, local_plan: assignment_pb2.LocalPlan, classes: int, most_photos: int
) -> str | None:
    found, asked = [sums.label for sums in header.evaluations], [each.label for each in local_plan.evaluations]
    if found != asked:
        return f"evaluations: found {_listed(found)}, asked for were {_listed(asked)}"
    for sums in header.evaluations:
        if sums.count > most_photos:
            return f"evaluations: found {sums.count} photos, at most {most_photos} are allowed"
        if sums.correct > sums.count:
            return f"evaluations: {sums.correct} of {sums.count} photos right"
        if not isfinite(sums.loss) or sums.loss < 0 or (sums.count == 0 and sums.loss != 0):
            return f"evaluations: a loss of {sums.loss:g} over {sums.count} photos"
        if reason := _confusion_fault(sums, classes if plans.asks(local_plan, "confusion") else None):
            return f"evaluations: {reason}"
    return None


def _confusion_fault(sums: update_pb2.EvaluationSums, classes: int | None) -> str | None:
    found = sums.confusion
    if classes is None:
        return "a confusion matrix came where none was asked for" if found else None
    if len(found) != classes**2:
        return f"a confusion matrix of {len(found)} numbers, must be {classes} x {classes}"
    right = sum(found[:: classes + 1])
    if sum(found) != sums.count or right != sums.correct:
        return (
            f"a confusion matrix of {sum(found)} photos, {right} of them right, beside {sums.correct} of {sums.count} "
            "photos right"
        )
    return None
