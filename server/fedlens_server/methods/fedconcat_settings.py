"""FedConcat's options, and the checks of its settings and bundles."""

from collections.abc import Mapping
from math import inf
from typing import Any

from fedlens_proto.manifest import program
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.planning import bundles, options
from fedlens_server.planning.method import TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

COUNTS, NOISY, INFERRED, BY_BIAS = "counts", "noisy", "inferred", "bias"
ELBOW = "elbow"
LABELS = "labels"
CLUSTERINGS = ("fesem", "ifca", "fedsoft")
WEIGHT, BIAS = "classifier.weight", "classifier.bias"  # the tensors of every bundle that concatenates extractors

OPTIONS = {
    "clustering": options.choice(LABELS, *CLUSTERINGS),
    "labels": options.choice(COUNTS, NOISY, INFERRED, BY_BIAS),
    "epsilon": options.Option(
        allowed="a number above 0",
        accepts=lambda value: options.is_number(value, 0, inf) and 0 < value < inf,
    ),
    "random_images": options.whole(1, 1_000_000),  # default: as many as in the paper
    "clusters": options.Option(
        allowed=f'a whole number, 1 or more, or "{ELBOW}"',
        accepts=lambda value: value == ELBOW or (isinstance(value, int) and options.is_number(value, 1, inf)),
        default=5,
    ),
    "balanced": options.flag(default=False),
    "extractor_rounds": options.whole(1, 1_000_000),
    "classifier_rounds": options.whole(1, 1_000_000),
    "classifier_steps": options.whole(1, 1_000_000, default=3),
    "start": options.choice("fresh", "clusters"),
}


def check_bundles(task: TaskPlan) -> None:
    """Require bundles of one model, and bundles that concatenate extractors of that model.

    Raises:
        SettingsError: A bundle is missing or differs.
    """
    bundles.need_equal(task)
    if not task.concatenated:
        raise SettingsError(
            "manifests", "no bundle that concatenates extractors", "one more, made by fedlens export --concatenated K"
        )
    first = task.concatenated[0]
    needed = [(t.name, list(t.shape)) for t in bundles.tensors(task, bundles.EXTRACTOR)]
    for i, manifest in enumerate(task.manifests):
        if not manifest.concatenated:
            continue
        taken = [
            (slot.name, list(slot.shape))
            for slot in program(manifest, "extract").inputs
            if slot.kind == manifest_pb2.SLOT_KIND_EXTRACTOR
        ]
        if taken != needed:
            found = "a bundle that concatenates other extractors than the first ordinary bundle's"
            raise SettingsError(f"manifests[{i}]", found, "one of the same model")
        if manifest.tensors != first.tensors or manifest.initial != first.initial:
            found = "a bundle with another classifier than the first one that concatenates"
            raise SettingsError(f"manifests[{i}]", found, "one with equal tensors and weights")
        if sorted(tensor.name for tensor in manifest.tensors) != [BIAS, WEIGHT]:
            found = f"a classifier of {', '.join(tensor.name for tensor in manifest.tensors)}"
            raise SettingsError(f"manifests[{i}]", found, f"one of {BIAS} and {WEIGHT}")


def classifier_names(task: TaskPlan) -> tuple[str, str]:
    """The names of weight and bias of the first ordinary bundle's classifier.

    Raises:
        SettingsError: The classifier has no bias.
    """
    by_rank = {len(tensor.shape): tensor.name for tensor in bundles.tensors(task, bundles.CLASSIFIER)}
    if sorted(by_rank) != [1, 2]:
        raise SettingsError("manifests[0]", "a classifier without a bias", "one with weight and bias for fedconcat")
    return by_rank[2], by_rank[1]


def check_labels(settings: TaskSettings, chosen: Mapping[str, Any]) -> None:
    """Require the settings of the chosen source of labels, and refuse those of the other sources.

    Raises:
        SettingsError: A setting is missing or belongs to another source.
    """
    labels, epsilon = chosen["labels"], chosen["epsilon"]
    if labels == NOISY and epsilon is None:
        raise SettingsError("options.epsilon", "nothing", 'a number above 0, since options.labels is "noisy"')
    if labels != NOISY and epsilon is not None:
        raise SettingsError("options.epsilon", epsilon, f'left out, since options.labels is "{labels}"')
    if labels != INFERRED and chosen["random_images"] is not None:
        allowed = f'left out, since options.labels is "{labels}"'
        raise SettingsError("options.random_images", chosen["random_images"], allowed)
    if labels == NOISY:
        for key in ("personal_evaluation", "confusion"):
            if getattr(settings, key):
                raise SettingsError(key, "true", 'false, since options.labels is "noisy": exact results undo the noise')


def rounds(settings: TaskSettings, chosen: Mapping[str, Any]) -> tuple[int, int]:
    """The rounds of the second and third phase; with the clustering round they add up to the task's rounds.

    Raises:
        SettingsError: They do not add up, or both are unset.
    """
    extractor, classifier = chosen["extractor_rounds"], chosen["classifier_rounds"]
    if extractor is None and classifier is None:
        allowed = "set, or options.classifier_rounds; rounds = 1 + extractor_rounds + classifier_rounds"
        raise SettingsError("options.extractor_rounds", "nothing", allowed)
    first = int(chosen["clustering"] == LABELS)
    left = settings.rounds - first
    extractor = left - classifier if extractor is None else extractor
    classifier = left - extractor if classifier is None else classifier
    if min(extractor, classifier) < 1 or extractor + classifier != left:
        given = [f"{name} {chosen[name]}" for name in ("extractor_rounds", "classifier_rounds") if chosen[name]]
        parts = "1 for clustering + " * first + "extractor_rounds + classifier_rounds, each 1 or more"
        allowed = f"{parts}, with {' and '.join(given)}"
        raise SettingsError("rounds", settings.rounds, allowed)
    return extractor, classifier


def check_clusters(task: TaskPlan, clusters: int | None) -> None:
    """Require a client and a place for an extractor for each cluster.

    Raises:
        SettingsError: There are more clusters.
    """
    if clusters is None:
        return
    settings = task.settings
    what, clients = (
        ("min_reports", settings.min_reports) if settings.by_arrival else ("population", settings.population)
    )
    if clusters > (clients or 0):
        raise SettingsError("options.clusters", clusters, f"at most the {what}, {clients}")
    room = task.concatenated[0].concatenated
    if clusters > room:
        allowed = f"at most {room}, the extractors that the concatenated bundle has room for"
        raise SettingsError("options.clusters", clusters, allowed)
