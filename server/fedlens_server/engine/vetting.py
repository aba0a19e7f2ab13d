"""Vetting of updates: whether header, statistics and norm are what the assignment asked for."""

from math import inf, isfinite, prod, sqrt

import numpy as np

from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2
from fedlens_server.engine import phases
from fedlens_server.engine.view import BlobSets, Task, TaskBundle
from fedlens_server.planning.method import span
from fedlens_server.planning.task_settings import MAX_COUNT
from fedlens_server.store import Location, PendingBlob, RestoredTensors, Store, StoredTensors

# Noise of an epsilon above 1e-7 stays below it. Distances to larger shares drown those between all others; from 1e154
# on they are infinite.
MAX_SHARE = 1e9
_SPAN = 1 << 16


def update_fault(
    task: Task, phase: int, bundle: TaskBundle, header: update_pb2.UpdateHeader, has_blob: bool, norm: float | None
) -> str | None:
    """The reason why an update is not acceptable; None: it is. `norm` is that of `update_norm`, None: not needed."""
    settings, local_plan = task.settings, task.phases[phase].local_plan
    if header.phase != phase:
        return f"phase: found {header.phase}, the round is of phase {phase}"
    if header.bundle != bundle.id:
        return f"bundle: found {header.bundle.hex()[:80] or 'none'}, the assignment has {bundle.id.hex()}"
    if local_plan.HasField("upload") != has_blob:
        return "a blob came where none was asked for" if has_blob else "a blob was expected, none came"
    if header.num_examples > settings.max_photos_per_client:
        return f"num_examples: found {header.num_examples}, at most {settings.max_photos_per_client} are allowed"
    if reason := statistics_fault(header, local_plan, len(bundle.manifest.class_names)):
        return reason
    if norm is not None and not isfinite(norm):
        return "the difference and what it is added to give an infinity"
    if settings.max_update_norm is not None and norm is not None and not norm <= settings.max_update_norm:
        return f"the update's difference has norm {norm:g}, at most {settings.max_update_norm:g} is allowed"
    return None


def statistics_fault(header: update_pb2.UpdateHeader, local_plan: assignment_pb2.LocalPlan, classes: int) -> str | None:
    """The first statistic in a header that is not what the plan asks for, in words; None: all are."""
    return (
        _counts_fault(header, classes if phases.asks(local_plan, "class_counts") else None)
        or _shares_fault(header, classes if phases.asks(local_plan, "label_distribution") else None)
        or _sums_fault(header, local_plan, classes)
    )


def update_norm(
    store: Store,
    local_plan: assignment_pb2.LocalPlan,
    bundle: TaskBundle,
    sets: BlobSets,
    base: bytes | None,
    blob: PendingBlob,
) -> float:
    """The L2 norm, in float64, of an upload's difference to what was downloaded, over all its float tensors.

    Tensors that start from client state alone are left out: the server does not know their start.

    Args:
        store: Holds the downloads.
        local_plan: Of the client's phase.
        bundle: The client's.
        sets: The client's downloads.
        base: Digest of the blob to which the upload is the difference; None: it is none.
        blob: The upload.

    Returns:
        Infinity if the upload is a difference that with its base gives an infinity.
    """
    location = Location(blob.size, raw=blob.raw, path=blob.path)
    sent = StoredTensors(blob.digest, blob.size, lambda _: location)
    uploaded = sent if base is None else RestoredTensors(store.tensors(base), sent)
    downloads = {item.name: store.tensors(item.sha256) for item in sets}
    total = 0.0
    bases = phases.base_sets(local_plan, bundle.manifest)
    for spec in sent.layout.specs:
        start = downloads.get(bases.get(spec.name, ""))
        if spec.dtype == blob_pb2.DTYPE_INT64:
            continue
        size = prod(spec.shape)
        for a in range(0, size, _SPAN):
            b = min(a + _SPAN, size)
            values = span(uploaded, spec.name, a, b)
            if not np.isfinite(values).all():
                return inf
            if start is not None and spec.name in start:
                difference = np.subtract(values, span(start, spec.name, a, b), dtype=np.float64)
                total += float(difference @ difference)
    return sqrt(total)


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


def _sums_fault(header: update_pb2.UpdateHeader, local_plan: assignment_pb2.LocalPlan, classes: int) -> str | None:
    found, asked = [sums.moment for sums in header.evaluations], phases.moments(local_plan)
    if found != sorted(set(found)) or not set(found) <= set(asked):
        return f"evaluations: found moments {found}, asked for were {asked}"
    for sums in header.evaluations:
        if sums.count > MAX_COUNT or sums.correct > sums.count:
            return f"evaluations: {sums.correct} of {sums.count} photos right"
        if not isfinite(sums.loss) or sums.loss < 0 or (sums.count == 0 and sums.loss != 0):
            return f"evaluations: a loss of {sums.loss:g} over {sums.count} photos"
        if reason := _confusion_fault(sums, classes if phases.asks(local_plan, "confusion") else None):
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
