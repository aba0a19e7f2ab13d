"""Whether a task's options and bundles fit FedConcat; what does not is named as the operator wrote it."""

from collections.abc import Mapping
from typing import Any

from fedlens_proto.manifest import program
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.planning import fitting
from fedlens_server.planning.method import TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

WEIGHT, BIAS = "classifier.weight", "classifier.bias"
"""The tensors of every bundle that concatenates extractors."""


def need_fitting_bundles(task: TaskPlan) -> None:
    """See that the task has bundles of one model, and bundles that concatenate extractors of that model.

    Raises:
        SettingsError: It has not.
    """
    if not task.ordinary:
        raise SettingsError("manifests", "only bundles that concatenate extractors", "an ordinary one too")
    fitting.need_equal_bundles(task)
    if not task.concatenated:
        raise SettingsError(
            "manifests", "no bundle that concatenates extractors", "one more, made by fedlens export --concatenated K"
        )
    first = task.concatenated[0]
    needed = [(t.name, list(t.shape)) for t in fitting.chosen(task, fitting.EXTRACTOR)]
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
        SettingsError: It has no bias.
    """
    by_rank = {len(tensor.shape): tensor.name for tensor in fitting.chosen(task, fitting.CLASSIFIER)}
    if sorted(by_rank) != [1, 2]:
        raise SettingsError("manifests[0]", "a classifier without a bias", "one with weight and bias for fedconcat")
    return by_rank[2], by_rank[1]


def need_labels(task: TaskPlan, options: Mapping[str, Any]) -> None:
    """See that what belongs to one source of labels alone is set for that one, and for no other.

    Raises:
        SettingsError: It is not.
    """
    labels, epsilon = options["labels"], options["epsilon"]
    if labels == "noisy" and epsilon is None:
        raise SettingsError("options.epsilon", "nothing", 'a number above 0, since options.labels is "noisy"')
    if labels != "noisy" and epsilon is not None:
        raise SettingsError("options.epsilon", epsilon, f'left out, since options.labels is "{labels}"')
    if labels != "inferred" and options["random_images"] is not None:
        allowed = f'left out, since options.labels is "{labels}"'
        raise SettingsError("options.random_images", options["random_images"], allowed)
    if labels == "noisy":
        for key in ("personal_evaluation", "confusion"):
            if getattr(task.settings, key):
                raise SettingsError(key, "true", 'false, since options.labels is "noisy": exact answers undo the noise')


def rounds(settings: TaskSettings, options: Mapping[str, Any]) -> tuple[int, int]:
    """The rounds of the second and third phase: with the clustering round they are all of the task's.

    Raises:
        SettingsError: They are not, or neither is said.
    """
    extractor, classifier = options["extractor_rounds"], options["classifier_rounds"]
    if extractor is None and classifier is None:
        allowed = "set, or options.classifier_rounds; rounds = 1 + extractor_rounds + classifier_rounds"
        raise SettingsError("options.extractor_rounds", "nothing", allowed)
    left = settings.rounds - 1
    extractor = left - classifier if extractor is None else extractor
    classifier = left - extractor if classifier is None else classifier
    if min(extractor, classifier) < 1 or extractor + classifier != left:
        said = [f"{name} {options[name]}" for name in ("extractor_rounds", "classifier_rounds") if options[name]]
        allowed = f"1 for clustering + extractor_rounds + classifier_rounds, each 1 or more, with {' and '.join(said)}"
        raise SettingsError("rounds", settings.rounds, allowed)
    return extractor, classifier


def need_room(task: TaskPlan, clusters: int | None) -> None:
    """See that there are a client and an extractor's place for each cluster.

    Raises:
        SettingsError: There are not.
    """
    if clusters is None:
        return
    if clusters > task.settings.population:
        raise SettingsError("options.clusters", clusters, f"at most the population, {task.settings.population}")
    room = task.concatenated[0].concatenated
    if clusters > room:
        allowed = f"at most {room}, the extractors that the concatenated bundle has room for"
        raise SettingsError("options.clusters", clusters, allowed)
