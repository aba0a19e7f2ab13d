"""FedConcat: clients with similar labels train a model together; then all train one classifier on all extractors.

Paper: FedConcat, section 3.3, Algorithm 1; -ID: appendix B; DP- and balanced clusters: appendix D.

    paper      here                        meaning
    K          state["clusters"]           number of clusters, given or by the elbow
    q_k        rows of `clustering`        label distribution of client k: exact, noisy or inferred
    w^j        state["cluster_<j>"]        model of cluster j; in the last phase its extractor alone
    j(k)       clients/<id>/cluster        cluster of client k
    n_k        counts[k]                   photos that client k trained on in this round
    S          updates                     clients whose updates arrived
    C          state[GLOBAL]               new classifier on K * d features; before, the clusters' first model
    epsilon    options.epsilon             of the Laplace noise that each client adds to its distribution (DP-)

Phases: `cluster` is one round of all clients; `extract` averages within the clusters, weighted by n_k; `concatenate`
trains C on the frozen extractors, `classifier_steps` batches per client and round, and takes the unweighted mean.

Rounds: `rounds` = 1 + `extractor_rounds` + `classifier_rounds`; a task may leave one of the two out.

Deviations, where the paper is silent: a client that did not report in the clustering round, or whose model gave
logits that are not finite (-ID), has no cluster; it sits `extract` out and takes part in `concatenate`. Clusters are
numbered by their lowest client id. With noisy labels no client evaluates, because exact results would reveal what the
noise hides. The classifier of an exported bundle has room for more extractors than K; absent features are zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import INITIAL, program
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.arithmetic import clustering, inferred_labels
from fedlens_server.methods.arithmetic.clustering import Rows
from fedlens_server.methods.arithmetic.linear_combination import in_order
from fedlens_server.methods.fedavg import GLOBAL, average_set, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.method import (
    Method,
    MethodState,
    NothingToAggregate,
    Phase,
    TaskPlan,
    TensorSet,
    Tools,
    Update,
)
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

CLUSTER, EXTRACT, CONCATENATE = "cluster", "extract", "concatenate"
COUNTS, NOISY, INFERRED = "counts", "noisy", "inferred"
ELBOW = "elbow"
WEIGHT, BIAS = "classifier.weight", "classifier.bias"  # the tensors of every bundle that concatenates extractors

OPTIONS = {
    "labels": options.choice(COUNTS, NOISY, INFERRED),
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


def concatenate(weights: Sequence[Array], biases: Sequence[Array]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One classifier whose logits are the sum of the clusters' logits.

    Args:
        weights: The weight of each cluster's classifier in cluster order, float [classes, d].
        biases: The bias of each, float [classes].

    Returns:
        The weights side by side, float32 [classes, K * d], and the sum of the biases, float32 [classes].

    Source: FedConcat, section 3.3, the start of the new classifier from the clusters' classifiers.
    """
    total = np.sum([np.asarray(bias, np.float64) for bias in biases], axis=0)
    return np.concatenate([np.asarray(weight, np.float32) for weight in weights], 1), total.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class FedConcat:
    """The settings of the method, and its three functions."""

    labels: str = COUNTS
    random_images: int = inferred_labels.IMAGES
    clusters: int | None  # None: by the elbow
    most_clusters: int  # extractors for which the concatenated bundle has room
    balanced: bool = False
    from_clusters: bool = False
    extractor: frozenset[str] = frozenset()  # names of the ordinary bundle's tensors
    weight: str = ""
    bias: str = ""

    def begin(self, phase: Phase, state: MethodState, tools: Tools) -> MethodState:
        """The initial model; then that model, or the averaged one, for each cluster; then the new classifier."""
        if phase.name == CLUSTER:
            return {GLOBAL: tools.initial}
        models = [_cluster(j) for j in range(state["clusters"])]
        others = {name: value for name, value in state.items() if name not in (GLOBAL, *models)}
        if phase.name == EXTRACT:
            return {**others, **dict.fromkeys(models, state[GLOBAL])}
        extractors = {model: {name: state[model][name] for name in sorted(self.extractor)} for model in models}
        return {**others, **extractors, GLOBAL: self._new_classifier([state[model] for model in models], tools)}

    def download(self, phase: Phase, state: MethodState, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The model of the client's cluster; in the last phase the classifier with all extractors."""
        if phase.name == CONCATENATE:
            return {name: state[name] for name in (GLOBAL, *map(_cluster, range(state["clusters"])))}
        if client is None:
            return None
        if phase.name == EXTRACT:
            cluster = state.get(_place(client))
            return None if cluster is None else {GLOBAL: state[_cluster(cluster)]}
        return {GLOBAL: state[GLOBAL]} if self.labels == INFERRED else {}

    def aggregate(self, phase: Phase, state: MethodState, updates: Sequence[Update], tools: Tools) -> MethodState:
        """The clusters; then the mean within each cluster; then the unweighted mean of the classifier."""
        trained = [update for update in in_order(updates) if update.num_examples > 0]
        if not trained:
            raise NothingToAggregate("no client trained on any photo")
        if phase.name == CLUSTER:
            return self._clustered(state, trained, tools)
        if phase.name == CONCATENATE:
            alike = [replace(update, num_examples=1) for update in trained]
            return {**state, GLOBAL: average_set(alike, state[GLOBAL])}
        new = dict(state)
        for j in range(state["clusters"]):
            if members := [update for update in trained if state.get(_place(update.client)) == j]:
                new[_cluster(j)] = average_set(members, state[_cluster(j)])
        return new

    def _clustered(self, state: MethodState, updates: Sequence[Update], tools: Tools) -> MethodState:
        rows = self._rows(updates, tools)
        usable = np.flatnonzero(np.isfinite(rows).all(1)).tolist()
        if not usable:
            raise NothingToAggregate("no client's model gives finite logits")
        rows, updates = rows[usable], [updates[k] for k in usable]
        most = min(self.most_clusters, len(updates))
        wanted = clustering.k_by_elbow(rows, most, tools.generator) if self.clusters is None else self.clusters
        found = clustering.k_means(rows, wanted, tools.generator, balanced=self.balanced)
        places = {_place(update.client): int(j) for update, j in zip(updates, found.labels, strict=True)}
        start = average_set(updates, state[GLOBAL]) if self.labels == INFERRED else state[GLOBAL]
        return {**state, **places, GLOBAL: start, "clusters": len(found.centres)}

    def _rows(self, updates: Sequence[Update], tools: Tools) -> Rows:
        """The label distribution of each client, float64 [clients, classes]."""
        if self.labels == COUNTS:
            return clustering.label_distributions(np.array([update.class_counts for update in updates]))
        if self.labels == NOISY:
            return np.array([update.label_distribution for update in updates], np.float64)
        assert tools.infer is not None  # the task's bundles have ONNX
        models = [update.tensors for update in updates]
        return inferred_labels.label_distributions(
            tools.infer, models, self.random_images, tools.photo_shape, tools.generator
        )

    def _new_classifier(self, models: Sequence[TensorSet], tools: Tools) -> TensorSet:
        initial = tools.initial_concatenated
        assert initial is not None  # the task has such a bundle
        if not self.from_clusters:
            return initial
        weight, bias = concatenate([model[self.weight] for model in models], [model[self.bias] for model in models])
        room = np.zeros(initial[WEIGHT].shape, np.float32)
        room[:, : weight.shape[1]] = weight
        return {WEIGHT: room, BIAS: bias}


def for_task(task: TaskPlan) -> Method:
    """FedConcat for a task: clustering by all clients; training within clusters; training the common classifier.

    Raises:
        SettingsError: An option is not allowed, is missing or contradicts another; there are fewer clients, or places
            for extractors, than clusters; or the bundles do not fit each other or the options.
    """
    settings = task.settings
    chosen = options.read(settings, OPTIONS)
    labels = chosen["labels"]
    _check_bundles(task)
    _check_labels(settings, chosen)
    if labels == INFERRED:
        bundles.need_onnx(task)
    extractor_rounds, classifier_rounds = _rounds(settings, chosen)
    clusters = None if chosen["clusters"] == ELBOW else chosen["clusters"]
    _check_clusters(task, clusters)
    weight, bias = _classifier_names(task)
    method = FedConcat(
        labels=labels,
        random_images=chosen["random_images"] or inferred_labels.IMAGES,
        clusters=clusters,
        most_clusters=task.concatenated[0].concatenated,
        balanced=chosen["balanced"],
        from_clusters=chosen["start"] == "clusters",
        extractor=bundles.names(task, bundles.EXTRACTOR),
        weight=weight,
        bias=bias,
    )
    # With noisy labels exact results would reveal what the noise hides.
    evaluation = pb.EvaluationPlan() if labels == NOISY else pb.EvaluationPlan(at_start=True, at_end=True)
    train = whole_model_plan(task)
    train.evaluation.CopyFrom(evaluation)
    first = train if labels == INFERRED else _statistics_plan(labels, chosen["epsilon"])
    last = _classifier_plan(task, chosen["classifier_steps"], method.most_clusters)
    last.evaluation.CopyFrom(evaluation)
    size = settings.cohort_size
    phases = (
        Phase(name=CLUSTER, rounds=1, cohort=None, local_plan=first),
        Phase(name=EXTRACT, rounds=extractor_rounds, cohort=size, local_plan=train),
        Phase(name=CONCATENATE, rounds=classifier_rounds, cohort=size, local_plan=last, concatenated=True),
    )
    return Method(phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate)


def _statistics_plan(labels: str, epsilon: float | None) -> pb.LocalPlan:
    """The local plan that only reports the client's labels."""
    counts = pb.ClientStatistic(class_counts=pb.ClassCounts())
    noisy = pb.ClientStatistic(label_distribution=pb.LabelDistribution(epsilon=epsilon or 0.0))
    return pb.LocalPlan(
        start=[pb.StartRule(source=pb.SetSource(download=INITIAL))],
        statistics=[counts if labels == COUNTS else noisy],
    )


def _classifier_plan(task: TaskPlan, steps: int, extractors: int) -> pb.LocalPlan:
    """The local plan that trains the common classifier on frozen extractors."""
    manifest, downloaded = task.concatenated[0], pb.SetSource(download=GLOBAL)
    # Its objective may have fewer hyper-parameters than the models' objective.
    known = {hyper.name for hyper in manifest.hyper_parameters}
    hyper = {name: value for name, value in task.settings.hyper.items() if name in known}
    stage = task.settings.stage("step", hyper)
    stage.steps = steps
    return pb.LocalPlan(
        start=[pb.StartRule(source=downloaded)],
        references=bundles.bind(manifest, GLOBAL, downloaded),
        stages=[stage],
        upload=task.settings.upload(GLOBAL),
        extractors=[_cluster(j) for j in range(extractors)],
    )


def _check_bundles(task: TaskPlan) -> None:
    """Require bundles of one model, and bundles that concatenate extractors of that model.

    Raises:
        SettingsError: A bundle is missing or differs.
    """
    if not task.ordinary:
        raise SettingsError("manifests", "only bundles that concatenate extractors", "an ordinary one too")
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


def _classifier_names(task: TaskPlan) -> tuple[str, str]:
    """The names of weight and bias of the first ordinary bundle's classifier.

    Raises:
        SettingsError: The classifier has no bias.
    """
    by_rank = {len(tensor.shape): tensor.name for tensor in bundles.tensors(task, bundles.CLASSIFIER)}
    if sorted(by_rank) != [1, 2]:
        raise SettingsError("manifests[0]", "a classifier without a bias", "one with weight and bias for fedconcat")
    return by_rank[2], by_rank[1]


def _check_labels(settings: TaskSettings, chosen: Mapping[str, Any]) -> None:
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


def _rounds(settings: TaskSettings, chosen: Mapping[str, Any]) -> tuple[int, int]:
    """The rounds of the second and third phase; with the clustering round they add up to the task's rounds.

    Raises:
        SettingsError: They do not add up, or both are unset.
    """
    extractor, classifier = chosen["extractor_rounds"], chosen["classifier_rounds"]
    if extractor is None and classifier is None:
        allowed = "set, or options.classifier_rounds; rounds = 1 + extractor_rounds + classifier_rounds"
        raise SettingsError("options.extractor_rounds", "nothing", allowed)
    left = settings.rounds - 1
    extractor = left - classifier if extractor is None else extractor
    classifier = left - extractor if classifier is None else classifier
    if min(extractor, classifier) < 1 or extractor + classifier != left:
        given = [f"{name} {chosen[name]}" for name in ("extractor_rounds", "classifier_rounds") if chosen[name]]
        allowed = f"1 for clustering + extractor_rounds + classifier_rounds, each 1 or more, with {' and '.join(given)}"
        raise SettingsError("rounds", settings.rounds, allowed)
    return extractor, classifier


def _check_clusters(task: TaskPlan, clusters: int | None) -> None:
    """Require a client and a place for an extractor for each cluster.

    Raises:
        SettingsError: There are more clusters.
    """
    if clusters is None:
        return
    if clusters > task.settings.population:
        raise SettingsError("options.clusters", clusters, f"at most the population, {task.settings.population}")
    room = task.concatenated[0].concatenated
    if clusters > room:
        allowed = f"at most {room}, the extractors that the concatenated bundle has room for"
        raise SettingsError("options.clusters", clusters, allowed)


def _cluster(j: int) -> str:
    return f"cluster_{j}"


def _place(client: bytes) -> str:
    return f"clients/{client.hex()}/cluster"
